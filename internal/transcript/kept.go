package transcript

import (
	"encoding/json"
	"maps"
	"regexp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// The forms of texts that are kept. A text of another form is redacted.
var (
	// word is a word of an enumeration, a kind, a section or a tag.
	word = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,63}$`)
	// name is the name of an object or a model, or several names with slashes in between.
	name = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:/@+-]{0,511}$`)
	// user is the name of a user: one line of any characters, because users have names such as
	// https://issuer.example#subject. 512 characters are the limit of the API.
	user = regexp.MustCompile(`^[^\p{Cc}\p{Zl}\p{Zp}]{1,512}$`)
	// digest is a hash in hexadecimal.
	digest = regexp.MustCompile(`^[0-9a-f]{16,128}$`)
	// amount is an amount of money.
	amount = regexp.MustCompile(`^[0-9]{1,30}(\.[0-9]{1,30})?$`)
	// output is the name that the engine gives to the artifact of a call.
	output = regexp.MustCompile(`^(turn-[0-9]{1,18}-)?call-[0-9]{1,6}-[0-9]{1,6}$`)
	// day is a date.
	day = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}$`)
	// instant is a time.
	instant = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{5,20}(Z|[+-][0-9]{2}:[0-9]{2})$`)
)

// looksLike returns a rule that keeps texts of a form.
func looksLike(form *regexp.Regexp) scalar {
	return func(value json.RawMessage) bool {
		var text string
		return json.Unmarshal(value, &text) == nil && (text == "" || form.MatchString(text))
	}
}

// The rules for scalars.
var (
	aWord    = looksLike(word)
	aName    = looksLike(name)
	aUser    = looksLike(user)
	aDigest  = looksLike(digest)
	anAmount = looksLike(amount)
	aDay     = looksLike(day)
	aTime    = looksLike(instant)
	anOutput = looksLike(output)
	aNumber  = scalar(func(value json.RawMessage) bool {
		var n json.Number
		return value[0] != '"' && json.Unmarshal(value, &n) == nil
	})
	aBoolean = scalar(func(value json.RawMessage) bool {
		var b bool
		return json.Unmarshal(value, &b) == nil
	})
)

// The rules for parts that several payloads share.
var (
	usage = fields{
		"inputTokens": aNumber, "outputTokens": aNumber, "reasoningTokens": aNumber, "cacheReadTokens": aNumber,
		"cacheCreationTokens": aNumber, "estimated": aBoolean,
	}
	cost     = fields{"amount": anAmount, "currency": aWord, "priceDate": aDay}
	revision = fields{"name": aName, "id": aName, "version": aName, "generation": aNumber}
	calls    = each{fields{"id": callID{}, "name": toolName{}}}
	child    = fields{"turn": aName, "usage": usage, "cost": cost}
	message  = fields{
		"role": aWord, "name": aWord, "stableChars": aNumber, "toolCalls": calls, "toolCallID": callID{},
		"attachments": each{fields{"tokens": aNumber, "bytes": aNumber}},
	}
	redactions = each{fields{"rule": aName, "matches": aNumber}}
	tools      = each{fields{
		"name": aName, "endsTurn": aBoolean,
		"parameters": each{fields{"name": aName, "type": aWord, "required": aBoolean}},
	}}
	offers = each{fields{
		"name": aName, "endsTurn": aBoolean, "effect": aWord, "role": aWord, "timeout": aNumber, "retryOnTimeout": aBoolean,
		"maxCalls": aNumber, "requiresApproval": aBoolean, "trusted": aBoolean,
		"source":     fields{"server": aName, "name": aName, "agent": aName},
		"parameters": each{fields{"name": aName, "type": aWord, "required": aBoolean}},
	}}
	exposure = fields{
		"tools": offers, "packs": offers, "leftOut": aNumber, "missing": each{aName}, "effectsDeclared": aBoolean,
	}
	undoMark = fields{
		"step": aNumber, "callID": callID{}, "turnUID": aName, "turn": aName, "undone": aBoolean, "repeatable": aBoolean,
		"mayHaveActed": aBoolean,
	}
	history = fields{"sessionUID": aName, "first": aNumber, "through": aNumber, "at": aNumber, "messages": aNumber}
	report  = fields{
		"mode": aWord, "chars": aNumber, "stableChars": aNumber, "dynamicChars": aNumber, "sectionsAsked": each{aWord},
		"sections":  each{aWord},
		"toolCount": aNumber, "renderHash": aDigest, "profile": revision,
		"contributions": each{fields{"name": aName, "trusted": aBoolean, "chars": aNumber, "leftOut": aNumber}},
		"variables":     each{aName}, "replacedBytes": aNumber,
	}
)

// kept has the rules for the payload of each kind. A kind without rules is redacted completely. Hashes of content and
// values that contain the ID of a call are not kept. renderHash is kept, because it is the hash of a part of the prompt
// that all Turns of an Agent share.
var kept = map[journal.Kind]rule{
	journal.RunStarted: fields{
		"executor": aName, "namespace": aName, "name": aName, "requester": aUser, "begun": aTime, "endOnly": aBoolean,
	},
	journal.RunParked: fields{
		"approvals": aNumber, "turns": each{aName}, "budget": aName,
		"begun": each{fields{"step": aNumber, "callID": callID{}, "turnUID": aName, "notCreated": aNumber}},
	},
	journal.PreparationInput: fields{"zone": aName, "number": aNumber, "history": history, "input": fields{
		"Agent":   fields{"Name": aName, "Thinking": aWord, "MaxMemories": aNumber, "AllowsTrusted": aBoolean},
		"Profile": fields{"Name": aName, "ID": aName, "Version": aName, "Generation": aNumber, "Mode": aWord, "Sections": each{aWord}},
		"Turn":    fields{"Name": aName, "Namespace": aName, "Mode": aWord, "Depth": aNumber, "MissingTurns": aNumber},
		"Tools":   tools, "Provider": aName, "Model": aName, "Now": aTime,
	}, "settings": fields{"hideCitations": aBoolean, "appendCitations": aBoolean, "web": aBoolean}},
	journal.PromptRendered: with(revision, fields{
		"renderHash": aDigest, "variables": each{aName},
	}),
	journal.Prepared: fields{
		"provider": aName, "model": aName, "messages": each{message}, "tools": tools,
		"skills": each{fields{"key": aName}}, "report": report,
		"history": history,
	},
	journal.ToolsExposed: exposure,
	journal.ModelRequested: fields{
		"step": aNumber, "purpose": aWord, "provider": aName, "model": aName, "attempt": aNumber, "id": aName,
		"estimatedTokens": aNumber, "estimatedCost": cost, "place": aNumber, "outputLimit": aNumber,
		"budget": aName, "reserved": aBoolean, "countsTurn": aBoolean,
	},
	journal.ModelFailed: fields{
		"step": aNumber, "purpose": aWord, "provider": aName, "model": aName, "kind": aWord, "usage": usage, "cost": cost,
		"durationMilliseconds": aNumber,
		"unsent":               aBoolean, "notReached": aBoolean, "place": aNumber, "ownShortage": aBoolean, "mayBeBilled": aBoolean,
		"empty": aBoolean, "storeUnread": aBoolean,
	},
	journal.ModelReplied: fields{
		"step": aNumber, "purpose": aWord, "provider": aName, "model": aName, "cost": cost,
		"durationMilliseconds": aNumber, "firstEventMilliseconds": aNumber, "last": aBoolean, "overBudget": aBoolean,
		"reply": fields{"toolCalls": calls, "finishReason": aWord, "usage": usage, "tooLong": aBoolean},
	},
	journal.ToolRepaired: fields{"step": aNumber, "callID": callID{}, "name": toolName{}, "attempt": aNumber},
	journal.ApprovalRequested: fields{
		"step": aNumber, "callID": callID{}, "name": toolName{}, "requested": aTime, "expires": aTime,
	},
	journal.ApprovalDecided: fields{"step": aNumber, "callID": callID{}, "approved": aBoolean, "expired": aBoolean, "by": aUser},
	journal.ToolIntended: fields{
		"step": aNumber, "callID": callID{}, "name": toolName{}, "effect": aWord, "attempt": aNumber, "retry": aBoolean,
		"descendants": aNumber,
	},
	journal.ToolFinished: fields{
		"step": aNumber, "callID": callID{}, "name": toolName{}, "outcome": aWord, "class": aWord, "bytes": aNumber,
		"durationMilliseconds": aNumber, "artifactName": anOutput, "mayHaveActed": aBoolean,
		"spent": child, "endsTurn": aBoolean, "descendants": aNumber,
		"undo":     fields{"server": aName, "uid": aName, "tool": aName, "problem": aWord, "argument": aWord},
		"undoneBy": aName,
	},
	journal.OutputChecked: fields{
		"step": aNumber, "callID": callID{}, "findings": each{fields{"policy": aName, "onViolation": aWord, "unchecked": aBoolean}},
	},
	journal.OutputRejected: fields{"step": aNumber, "policies": each{aName}, "noText": aBoolean},
	journal.Compacted:      fields{"from": aNumber, "keptHistory": aNumber, "forced": aBoolean, "tokens": aNumber},
	journal.Reflected:      fields{"step": aNumber, "replaced": aBoolean},
	journal.ContextWarned:  fields{"tokens": aNumber, "contextWindow": aNumber},
	journal.TextRedacted:   fields{"redactions": redactions},
	journal.UndoPlanned: fields{
		"turnUID": aName, "namespace": aName, "name": aName, "agent": aName, "calls": calls, "exposure": exposure,
		"of": each{fields{"step": aNumber, "callID": callID{}, "name": toolName{}, "state": aWord, "tool": aName, "server": aName}},
	},
	journal.UndoBegun: undoMark,
	journal.UndoEnded: undoMark,
	journal.Finalized: fields{
		"stop": aWord, "preparation": report, "provider": aName, "model": aName, "messageCount": aNumber,
		"counts": fields{
			"steps": aNumber, "modelRequests": aNumber, "modelRetries": aNumber, "toolCalls": aNumber,
			"unknownOutcomes": aNumber, "resumes": aNumber,
			"toolRepairs": aNumber, "toolRetries": aNumber, "compactions": aNumber, "reflections": aNumber,
		},
		"record": fields{
			"usage": usage, "cost": cost,
			"decision": fields{"key": aName, "strategy": aWord, "promptRenderHash": aDigest, "toolsUsed": each{toolName{}}},
		},
		"spent":    each{fields{"provider": aName, "model": aName, "usage": usage, "price": aWord, "priceDate": aDay}},
		"fallback": fields{"from": aName, "to": aName},
		"answer":   fields{"name": aName, "bytes": aNumber},
		"calls": each{fields{
			"callID": callID{}, "name": toolName{}, "step": aNumber, "outcome": aWord, "durationMilliseconds": aNumber, "bytes": aNumber,
			"artifact": anOutput, "turn": aName, "decidedBy": aUser,
		}},
		"withheld": aBoolean, "violations": each{fields{"policy": aName, "onViolation": aWord, "unchecked": aBoolean}},
		"toolsLeftOut": aNumber, "toolServersMissing": each{aName}, "warned": aBoolean, "missingTurns": aNumber,
		"subAgents":   fields{"usage": usage, "cost": cost},
		"descendants": aNumber, "begun": aTime, "redactions": redactions, "sourcesBytes": aNumber,
	},
	journal.SessionTurn: fields{
		"turnUID": aName, "turnName": aName, "messages": each{message}, "usage": usage, "cost": cost, "contextTokens": aNumber,
		"compaction": fields{"first": aNumber},
		"head": fields{
			"turns": aNumber, "usage": usage, "cost": cost, "contextTokens": aNumber, "missingTurns": aNumber, "first": aNumber,
		},
	},
}

// with returns the rules of a and b.
func with(a, b fields) fields {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}
