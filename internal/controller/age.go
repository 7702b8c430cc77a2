package controller

import (
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// age returns how long ago an object was created. now is the time of Capstan (see apiclock.Clock.Now), and server is
// the time by the API server's clock. After that clock was set back, now is ahead of it for a while. The API server
// sets the creation time, so an object that was created since then is as old as server says. A creation time after
// server is from before that step; for such an object, now is right. Once server has reached that time, the object
// cannot be distinguished from a new one, so its age counts again from 0.
func age(o client.Object, now, server time.Time) time.Duration {
	created := o.GetCreationTimestamp().Time
	if created.After(server) {
		return now.Sub(created)
	}
	return server.Sub(created)
}

// waitForStart returns how long a Turn has waited for its start. A Turn that was never suspended has waited since its
// creation, also in its status. Other times in a status come from Capstan.
func waitForStart(t *v1alpha1.Turn, now, server time.Time) time.Duration {
	since := t.WaitingSince()
	if since.Equal(t.CreationTimestamp.Time) {
		return age(t, now, server)
	}
	return now.Sub(since)
}
