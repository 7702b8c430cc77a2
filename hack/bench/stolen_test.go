package main

import "testing"

func TestStolenSince(t *testing.T) {
	earlier := cpuTime{all: 1000, stolen: 10}
	for name, tc := range map[string]struct {
		later cpuTime
		want  float64
	}{
		"none":          {cpuTime{all: 1020, stolen: 10}, 0},
		"a quarter":     {cpuTime{all: 1020, stolen: 15}, 25},
		"no time":       {earlier, 0},
		"nothing known": {cpuTime{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.later.stolenSince(earlier); got != tc.want {
				t.Errorf("stolenSince = %v, want %v", got, tc.want)
			}
		})
	}
	if now := readCPUTime(); now.all <= 0 || now.stolen < 0 {
		t.Errorf("readCPUTime = %+v, want the time of this machine's CPUs", now)
	}
}

func TestQuietestReturnsTheAttemptWithTheLeastStealTime(t *testing.T) {
	noisy, quiet := &AttackReport{Without: &VictimLoad{StolenPercent: 1}, With: &VictimLoad{StolenPercent: 40}},
		&AttackReport{Without: &VictimLoad{StolenPercent: 3}, With: &VictimLoad{StolenPercent: 2}}
	if noisy.stolen() != 40 || quiet.stolen() != 3 {
		t.Errorf("stolen = %v and %v, want the worse of the two windows: 40 and 3", noisy.stolen(), quiet.stolen())
	}
	for name, tc := range map[string]struct {
		tries []*AttackReport
		want  *AttackReport
		asked int
	}{
		"quiet the first time": {[]*AttackReport{quiet}, quiet, 1},
		"quiet the next time":  {[]*AttackReport{noisy, quiet}, quiet, 2},
		"never quiet":          {[]*AttackReport{noisy, {Without: &VictimLoad{}, With: &VictimLoad{StolenPercent: 90}}, noisy}, noisy, 3},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			got, err := quietest(func(try int) (*AttackReport, error) {
				if asked++; try != asked {
					t.Errorf("attempt %d has the number %d", asked, try)
				}
				return tc.tries[try-1], nil
			})
			if err != nil || got != tc.want || asked != tc.asked {
				t.Errorf("quietest = %+v, %v after %d tries, want %+v after %d", got, err, asked, tc.want, tc.asked)
			}
		})
	}
}
