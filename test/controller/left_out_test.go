package controller_test

import (
	"fmt"
	"runtime"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
)

var _ = Describe("Objects of a namespace", func() {
	It("are not kept in memory beyond its share, report this, and are read again when there is memory", func(ctx SpecContext) {
		GinkgoTB().Setenv("GOMEMLIMIT", "off") // otherwise the manager sets a limit for this whole process
		s, team := newTestEnv(ctx, `{"rules": [{"reply": {"text": "Hello."}}]}`), newTestEnv(ctx, `{"rules": [{"reply": {"text": "Hi."}}]}`)
		s.run(func(o *manager.Options) {
			o.MemoryLimit = "64Mi" // 3.5 MiB for the objects of a namespace
			o.WatchNamespaces = []string{s.namespace, team.namespace}
		})
		const profiles, kept = 6, 4
		name := func(i int) string { return fmt.Sprintf("profile-%d", i) }
		for i := range profiles {
			s.create(ctx, newProfile(name(i), func(p *v1alpha1.PromptProfile) {
				p.Spec.AllowedNamespaces = allowFrom(v1alpha1.NamespacesFromAll, nil)
				for k := range 13 {
					p.Spec.Skills = append(p.Spec.Skills, v1alpha1.Skill{
						Key: fmt.Sprintf("skill-%d", k), Description: "A long skill.", Content: new(strings.Repeat("x", 62_000)),
					})
				}
			}))
		}
		for i := range profiles {
			want := HavePrefix("Ready: ")
			if i >= kept {
				want = And(HavePrefix("TooManyObjects: the manager has no memory left for this object"),
					ContainSubstring("namespace %q", s.namespace))
			}
			awaitText(ctx, s, &v1alpha1.PromptProfile{}, name(i), profileReadiness, want)
		}
		s.create(ctx, s.basics(func(a *v1alpha1.Agent) { a.Spec.PromptProfileRef.Name = name(kept) })...)
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, And(HavePrefix("ProfileNotReady: "),
			ContainSubstring("the manager has no memory left for this object")))
		team.create(ctx, team.basics(func(a *v1alpha1.Agent) {
			a.Spec.PromptProfileRef = v1alpha1.SharedReference{Namespace: s.namespace, Name: name(kept)}
		})...)
		awaitText(ctx, team, &v1alpha1.Agent{}, agent, agentReadiness, Equal(fmt.Sprintf(
			"ProfileNotReady: PromptProfile %q is not ready (TooManyObjects)", s.namespace+"/"+name(kept))))
		for _, env := range []*testEnv{s, team} {
			env.create(ctx, newTurn("waits"))
			env.awaitState(ctx, "waits", v1alpha1.TurnReasonWaitingForAgent)
		}

		for i := range kept {
			Expect(apiClient.Delete(ctx, newProfileIn(s.namespace, name(i)))).To(Succeed())
		}
		Eventually(func(g Gomega) {
			runtime.GC() // deleted objects count until they are garbage
			var p v1alpha1.PromptProfile
			g.Expect(apiClient.Get(ctx, s.key(name(kept)), &p)).To(Succeed())
			g.Expect(profileReadiness(&p)).To(HavePrefix("Ready: "))
		}).WithContext(ctx).Should(Succeed())
		for _, env := range []*testEnv{s, team} {
			env.awaitState(ctx, "waits", v1alpha1.TurnReasonCompleted)
		}
	}, SpecTimeout(3*patience))
})

func newProfileIn(namespace, name string) *v1alpha1.PromptProfile {
	p := &v1alpha1.PromptProfile{}
	p.Namespace, p.Name = namespace, name
	return p
}
