package evaluation

import (
	"fmt"
	"strings"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/judge"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
)

// PeopleScore is what people think of an earlier answer.
type PeopleScore struct {
	// Score is the mean of their scores, a decimal from 0 to 1. It is rounded down to two digits, so that a mean below
	// 0.5 is never shown as 0.5. People is the number of people, or 0 if it is not known.
	Score  string `json:"score"`
	People int    `json:"people"`
	// isGood is true if the mean is at least 0.5.
	isGood bool
}

// good is the lowest mean of a good answer.
var good = decimal.RequireFromString("0.5")

// tolerance is the maximum by which a judge may score the new answer lower than the earlier answer. It is above 0,
// because a judge does not give the same answer the same score each time.
const tolerance judge.Score = 10

// peopleScore returns the mean of the scores.
func peopleScore(all []turnrecord.Feedback) (*PeopleScore, error) {
	sum := decimal.Zero
	for _, f := range all {
		score, err := decimal.NewFromString(f.Score)
		if err != nil {
			return nil, fmt.Errorf("the score of %q is %q: %w", f.User, f.Score, err)
		}
		sum = sum.Add(score)
	}
	mean := sum.Div(decimal.NewFromInt(int64(len(all))))
	return &PeopleScore{Score: mean.Truncate(2).String(), People: len(all), isGood: mean.GreaterThanOrEqual(good)}, nil
}

// score returns the score of the feedback of a case, or nil without feedback.
func (f *Feedback) score() *PeopleScore {
	if f == nil {
		return nil
	}
	score, err := decimal.NewFromString(f.Score)
	return &PeopleScore{Score: f.Score, isGood: err == nil && score.GreaterThanOrEqual(good)} // check has read it
}

// expectChange is like PeopleScore.expectChange, for the earlier answer and the score of the feedback. Without
// feedback, it returns an empty text.
func (f *Feedback) expectChange(current string) string {
	if f == nil {
		return ""
	}
	return f.score().expectChange(f.Answer, current)
}

// String returns the score for people.
func (s *PeopleScore) String() string {
	if s == nil {
		return ""
	}
	return s.Score
}

// by returns how many people gave which score.
func (s *PeopleScore) by() string {
	switch s.People {
	case 0:
		return "people gave " + s.Score
	case 1:
		return "1 person gave " + s.Score
	}
	return fmt.Sprintf("%d people gave %s", s.People, s.Score)
}

// expectChange returns a problem if people gave the scored answer a bad score and the new answer is the same, apart
// from leading and trailing space. Otherwise it returns an empty text.
func (s *PeopleScore) expectChange(scored, current string) string {
	if s == nil || s.isGood || strings.TrimSpace(scored) != strings.TrimSpace(current) {
		return ""
	}
	return fmt.Sprintf("the answer has not changed, and %s", s.by())
}

// expectNoLess returns a problem if people gave the earlier answer a good score, and a judge scores the new answer
// lower than the earlier one by more than tolerance. If the judge failed for the earlier answer, it has not compared
// the two, and expectNoLess also returns a problem. Otherwise it returns an empty text. The caller must report a judge
// that failed for the new answer.
func (s *PeopleScore) expectNoLess(earlier, current *judge.Evaluation) string {
	switch {
	case s == nil, !s.isGood, current.Score == nil:
		return ""
	case earlier.Score == nil:
		return fmt.Sprintf("judge %s failed for the earlier answer, to which %s: %s", current.Judge, s.by(), earlier.Reason)
	case *current.Score+tolerance >= *earlier.Score:
		return ""
	}
	return fmt.Sprintf("judge %s: score %s is below %s of the earlier answer, to which %s", current.Judge, current.Score, earlier.Score,
		s.by())
}
