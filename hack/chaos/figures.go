package main

// tokens of requests, in and out.
type tokens struct {
	Input  int64 `json:"input"`
	Output int64 `json:"output"`
}

func (t *tokens) add(input, output int64) {
	t.Input += input
	t.Output += output
}

// figures are what the checks have counted.
type figures struct {
	Turns    int `json:"turns"`
	Finished int `json:"finished"`
	// Resumes are the runs that went on from what an earlier one had left, by the statuses. Parked are those by the journals that went
	// on where a call had waited for people or for a Turn of a sub-agent, CutOff the others.
	Resumes int `json:"resumes"`
	Parked  int `json:"resumesOfParkedTurns"`
	CutOff  int `json:"resumesOfTurnsCutOff"`
	Entries int `json:"journalEntries"`

	// Requests are what the model's server has got; Replies and Failures what the journals have of them. Unsent are failures
	// that never arrived, as where a credential could not be read. Asides are the replies that are no steps.
	Requests int `json:"modelRequests"`
	Replies  int `json:"recordedReplies"`
	Asides   int `json:"recordedRepliesBesideSteps"`
	Failures int `json:"recordedFailures"`
	Unsent   int `json:"recordedFailuresNotSent"`
	// LostSent and LostUnsent are requests in flight at a kill, which have arrived at the model's server or not.
	LostSent   int `json:"requestsInFlightSent"`
	LostUnsent int `json:"requestsInFlightNotSent"`
	// Repeated are requests that the model's server has got twice, or for a step whose reply was recorded.
	Repeated int `json:"repliesRequestedAgain"`
	// Compactions are how often older messages were replaced by a summary.
	Compactions int `json:"compactions"`

	// Intended are side-effecting calls that were to be made, Made those that arrived, Twice those that did so twice.
	Intended int `json:"sideEffectsIntended"`
	Made     int `json:"sideEffectsMade"`
	Twice    int `json:"sideEffectsMadeTwice"`
	// Unknown are those in flight at a kill, UnknownMade how many of them have arrived, UnknownReported and UnknownTold how
	// many the statuses report and the models were told of.
	Unknown         int `json:"unknownOutcomes"`
	UnknownMade     int `json:"unknownOutcomesMade"`
	UnknownReported int `json:"unknownOutcomesReported"`
	UnknownTold     int `json:"unknownOutcomesTold"`
	// Repeatable are the calls that may be made again, RepeatableMade how often they were made, Waves how often several of them
	// were in flight together.
	Repeatable     int `json:"repeatableCalls"`
	RepeatableMade int `json:"repeatableCallsMade"`
	Waves          int `json:"waves"`

	// Awaited are the calls that people were asked about; Approved and Denied what they decided; ApprovedMade and DeniedMade how
	// many of these arrived.
	Awaited      int `json:"approvalsAsked"`
	Approved     int `json:"approved"`
	ApprovedMade int `json:"approvedMade"`
	Denied       int `json:"denied"`
	DeniedMade   int `json:"deniedMade"`
	// Delegated are the calls of sub-agents, and Children the Turns that they made.
	Delegated int `json:"subAgentCalls"`
	Children  int `json:"childTurns"`
	// SessionTurns are the Turns of Sessions.
	SessionTurns int `json:"sessionTurns"`

	// Billed is what the model's server billed, Reported what the statuses say, Lost what was billed for replies that no
	// journal has, and Estimated the part of Reported that stands for requests that were cut off. OfChildren is the part of Reported that the statuses of parents count, too.
	Billed     tokens `json:"billedTokens"`
	Reported   tokens `json:"reportedTokens"`
	OfChildren tokens `json:"reportedTokensOfChildren"`
	Lost       tokens `json:"billedTokensOfLostReplies"`
	Estimated  tokens `json:"reportedEstimates"`
}
