package main

// tokens counts input and output tokens.
type tokens struct {
	Input  int64 `json:"input"`
	Output int64 `json:"output"`
}

func (t *tokens) add(input, output int64) {
	t.Input += input
	t.Output += output
}

// figures holds the counts of the checks.
type figures struct {
	Turns    int `json:"turns"`
	Finished int `json:"finished"`
	// Resumes is the number of resumes in the statuses. Parked and CutOff count the runs that continued an earlier run
	// according to the journals: Parked those after a wait for approval or for the Turn of a sub-agent, and CutOff the
	// others.
	Resumes int `json:"resumes"`
	Parked  int `json:"resumesOfParkedTurns"`
	CutOff  int `json:"resumesOfTurnsCutOff"`
	Entries int `json:"journalEntries"`

	// Requests counts the requests that the model server has received. Replies and Failures count their outcomes in
	// the journals. Unsent counts failures before the request was sent, such as an unreadable credential. Asides
	// counts the replies that are not steps.
	Requests int `json:"modelRequests"`
	Replies  int `json:"recordedReplies"`
	Asides   int `json:"recordedRepliesBesideSteps"`
	Failures int `json:"recordedFailures"`
	Unsent   int `json:"recordedFailuresNotSent"`
	// LostSent counts the requests in flight at a kill that have reached the model server, and LostUnsent the requests
	// in flight at a kill that have not.
	LostSent   int `json:"requestsInFlightSent"`
	LostUnsent int `json:"requestsInFlightNotSent"`
	// Repeated counts the violations of paidOnce by a single request: for example, the model server has received it
	// twice, no journal has it, or the journal already had the reply.
	Repeated int `json:"repliesRequestedAgain"`
	// Compactions counts the replacements of older messages by a summary.
	Compactions int `json:"compactions"`

	// Intended counts the intents of side-effecting calls, Made the calls that arrived, and Twice the calls that
	// arrived twice.
	Intended int `json:"sideEffectsIntended"`
	Made     int `json:"sideEffectsMade"`
	Twice    int `json:"sideEffectsMadeTwice"`
	// Unknown counts the side-effecting calls in flight at a kill, and UnknownMade those that arrived.
	// UnknownReported and UnknownTold count the unknown outcomes in the statuses and in the requests to the models.
	Unknown         int `json:"unknownOutcomes"`
	UnknownMade     int `json:"unknownOutcomesMade"`
	UnknownReported int `json:"unknownOutcomesReported"`
	UnknownTold     int `json:"unknownOutcomesTold"`
	// Repeatable counts the calls that may be made again, and RepeatableMade how often they were made. Waves counts how
	// often several of these calls were in flight at the same time.
	Repeatable     int `json:"repeatableCalls"`
	RepeatableMade int `json:"repeatableCallsMade"`
	Waves          int `json:"waves"`

	// Awaited counts the calls that required approval. Approved and Denied count the decisions; ApprovedMade and
	// DeniedMade count the calls among them that arrived.
	Awaited      int `json:"approvalsAsked"`
	Approved     int `json:"approved"`
	ApprovedMade int `json:"approvedMade"`
	Denied       int `json:"denied"`
	DeniedMade   int `json:"deniedMade"`
	// Delegated counts the calls of sub-agents, and Children the Turns that they created.
	Delegated int `json:"subAgentCalls"`
	Children  int `json:"childTurns"`
	// SessionTurns counts the Turns of Sessions.
	SessionTurns int `json:"sessionTurns"`

	// Billed is the usage that the model server billed, and Reported the usage in the statuses. Lost was billed for
	// replies that no journal has. Estimated is the part of Reported that stands for requests that were interrupted.
	// OfChildren is the part of Reported that the statuses of parents include as well.
	Billed     tokens `json:"billedTokens"`
	Reported   tokens `json:"reportedTokens"`
	OfChildren tokens `json:"reportedTokensOfChildren"`
	Lost       tokens `json:"billedTokensOfLostReplies"`
	Estimated  tokens `json:"reportedEstimates"`
	// Records counts the records of Turns. Judged and Learned count the requests of judges and for memories in them,
	// and FollowedUp their usage. FollowUps counts the requests of both kinds that the model server has received.
	Records    int    `json:"records"`
	Judged     int    `json:"requestsOfJudges"`
	Learned    int    `json:"requestsForMemories"`
	FollowUps  int    `json:"requestsOfFollowUps"`
	FollowedUp tokens `json:"recordedTokensOfFollowUps"`
	// ComparedMessages counts the different messages of Turns for which the tokens of these requests were compared with
	// the billed tokens. EstimatedMessages counts the messages for which such a request was interrupted.
	ComparedMessages  int `json:"comparedMessages"`
	EstimatedMessages int `json:"estimatedMessages"`
	// Counted are the tokens, CountedCost is their cost in USD, and CountedTurns are the Turns that the Budget of all
	// Turns has counted.
	Counted      int64  `json:"tokensCountedByTheBudget"`
	CountedCost  string `json:"costCountedByTheBudget"`
	CountedTurns int64  `json:"turnsCountedByTheBudget"`
}
