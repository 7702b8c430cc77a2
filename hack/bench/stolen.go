package main

import "github.com/prometheus/procfs"

// cpuTime is what the machine's CPUs have done since its start, in seconds of one CPU.
type cpuTime struct {
	all float64
	// stolen is what a host has given to its other machines while this one had work.
	stolen float64
}

// readCPUTime reads the time of the CPUs. The zero value stands for a machine that does not tell.
func readCPUTime() cpuTime {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return cpuTime{}
	}
	stat, err := fs.Stat()
	if err != nil {
		return cpuTime{}
	}
	t := stat.CPUTotal
	return cpuTime{all: t.User + t.Nice + t.System + t.Idle + t.Iowait + t.IRQ + t.SoftIRQ + t.Steal, stolen: t.Steal}
}

// stolenSince returns how many per cent of the CPUs' time were stolen since then.
func (t cpuTime) stolenSince(then cpuTime) float64 {
	if t.all <= then.all {
		return 0
	}
	return 100 * (t.stolen - then.stolen) / (t.all - then.all)
}
