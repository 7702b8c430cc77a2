package main

import "github.com/prometheus/procfs"

// cpuTime is the total time of the machine's CPUs since its start, in seconds of one CPU.
type cpuTime struct {
	all float64
	// stolen is the steal time: the host ran other virtual machines although this machine had work.
	stolen float64
}

// readCPUTime reads the time of the CPUs. It returns the zero value if the time is not available.
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

// stolenSince returns the steal time between an earlier reading and t, in percent of the CPU time in between.
func (t cpuTime) stolenSince(earlier cpuTime) float64 {
	if t.all <= earlier.all {
		return 0
	}
	return 100 * (t.stolen - earlier.stolen) / (t.all - earlier.all)
}
