package turnrecord

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

func TestDetailsAreBounded(t *testing.T) {
	small := Details{
		Key: "support.chat.turn", Strategy: "DirectAnswer", Tools: []string{"a"}, Labels: map[string]string{"team": "red"},
		Prompt: &Prompt{Profile: "p", ID: "p", Version: "1", Tags: []string{"x"}},
		Models: []Model{{Provider: "p", Model: "m", Usage: model.Usage{InputTokens: 1}, Cost: &Cost{"0", "EUR"}}},
	}
	with := func(change func(*Details)) Details {
		d := small
		change(&d)
		return d
	}
	long := strings.Repeat("<", 1000) // six bytes each in JSON
	for name, tc := range map[string]struct {
		reason   string
		in, want Details
	}{
		"small": {"a small record is complete", small, small},
		"labels": {
			"labels are dropped first", with(func(d *Details) { d.Labels = map[string]string{"a": long, "b": long} }),
			with(func(d *Details) { d.Labels, d.Incomplete = nil, true }),
		},
		"too many labels": {
			"all labels are dropped if there are too many, because a random choice would mislead",
			with(func(d *Details) {
				d.Labels = map[string]string{}
				for i := range MaxLabels + 1 {
					d.Labels[fmt.Sprint(i)] = ""
				}
			}),
			with(func(d *Details) { d.Labels, d.Incomplete = nil, true }),
		},
		"models": {
			"the usage is the last to be dropped",
			with(func(d *Details) { d.Tools = []string{long, long} }),
			with(func(d *Details) {
				d.Tools, d.Labels, d.Prompt, d.Incomplete = nil, nil, &Prompt{Profile: "p", ID: "p", Version: "1"}, true
			}),
		},
		"one giant text": {
			"a record is written, whatever its texts are",
			Details{Key: long + long, Strategy: "DirectAnswer", TurnNumber: 3},
			Details{Strategy: "DirectAnswer", TurnNumber: 3, Incomplete: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := (&Record{UID: "u", Details: tc.in}).MarshalDetails()
			if err != nil || len(data) > MaxDetails {
				t.Fatalf("MarshalDetails: %d bytes, %v: %s", len(data), err, tc.reason)
			}
			var got Details
			if err := json.Unmarshal(data, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestOnePersonHasOneFeedback(t *testing.T) {
	all, err := WithFeedback([]Feedback{{User: "a", Score: "0"}, {User: "b", Score: "1"}}, Feedback{User: "a", Score: "0.5"})
	if diff := cmp.Diff([]Feedback{{User: "b", Score: "1"}, {User: "a", Score: "0.5"}}, all); diff != "" || err != nil {
		t.Errorf("%v; -want +got:\n%s", err, diff)
	}
	all = nil
	for i := range MaxFeedback {
		if all, err = WithFeedback(all, Feedback{User: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := WithFeedback(all, Feedback{User: "one more"}); err == nil {
		t.Error("the feedback of any number of people is kept")
	}
	if _, err := WithFeedback(all, Feedback{User: "3", Score: "1"}); err != nil {
		t.Errorf("a person of a full record cannot change their mind: %v", err)
	}
}
