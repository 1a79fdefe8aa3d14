package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
)

// beyond are the cases that kube-proxy 1.25's proxier of mode userspace cannot play by itself.
var beyond = map[string]string{
	"dual-stack":           "it has one IP family",
	"healthcheck-nodeport": "it has no HTTP server",
	"proxy-health":         "it has no HTTP server",
}

// TestUserspace plays the cases with kube-proxy 1.25's proxier of mode userspace, and then with
// proxyc's. The results of each flow must be equal, except for the listed differences.
func TestUserspace(t *testing.T) {
	applytest.RequireRoot(t)
	if *peerFlag {
		t.Skip("-peer is of the newest kube-proxy, which has no mode userspace")
	}
	pattern := *caseFlag
	if !applytest.All && pattern == "" {
		pattern = shortCases
	}
	chosen, err := regexp.Compile(pattern)
	if err != nil {
		t.Fatal(err)
	}
	listed, err := readDifferences("../../testdata/conformance/userspace-kube-proxy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	peer, err := kube.Userspace(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	program, err := program(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	cases := os.DirFS("../../testdata/conformance")
	records, err := applytest.LoadRecords(cases, "expected/iptables.json") // most outcomes are the same
	if err != nil {
		t.Fatal(err)
	}
	only := func(name string) bool {
		return beyond[name] == "" && chosen.MatchString(name)
	}
	for _, family := range []string{applytest.IPv4, applytest.IPv6} {
		t.Run(family, func(t *testing.T) {
			if family != applytest.IPv4 {
				applytest.Long(t)
			}
			answered := records.Answered("iptables", family, nil)
			play := func(name string, daemon applytest.DaemonFunc) map[string]map[string]applytest.Outcome {
				records := &applytest.Records{Results: map[string]map[string]map[string]applytest.Outcome{}}
				suite := &applytest.Suite{
					Runner: &applytest.Runner{Mode: "userspace", Daemon: daemon, Answered: answered},
					Family: family, Dir: cases, Only: only, Jobs: *serversFlag, Record: records,
				}
				score := suite.Play(t)
				t.Logf("%s: %d cases, %d flows, %.0f s", name, score.Cases, score.Flows, score.Took.Seconds())
				return records.Results[family]
			}
			theirs, ours := play("kube-proxy 1.25", oldProxier(peer, family)), play(program.name, applytest.ProxycWatch(program.path))
			all, err := applytest.LoadCases(os.DirFS("../../testdata/conformance/cases"), family)
			if err != nil || t.Failed() {
				t.Fatal(err)
			}
			for _, c := range all {
				if !only(c.Name) {
					continue
				}
				for _, problem := range listed.compare(family, c, theirs[c.Name], ours[c.Name]) {
					t.Error(problem)
				}
			}
		})
	}
}

// A difference is an intentional difference of proxyc from kube-proxy 1.25.
type difference struct {
	Why       string   `json:"why"`
	KubeProxy string   `json:"kube-proxy"` // the fate of the flows, see fate
	Proxyc    string   `json:"proxyc"`
	Families  []string `json:"families"` // empty: both
	Flows     []string `json:"flows"`    // "case stage.flow"
}

type differences []*difference

// readDifferences reads the list of differences.
func readDifferences(file string) (list differences, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if err := yaml.UnmarshalStrict(text, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for i, d := range list {
		if d.Why == "" || d.KubeProxy == "" || d.Proxyc == "" || d.KubeProxy == d.Proxyc || len(d.Flows) == 0 {
			return nil, fmt.Errorf("%s: difference %d: needs why, flows, and fates that differ", file, i+1)
		}
	}
	return list, nil
}

// of returns the difference that lists a flow.
func (list differences) of(family, flow string) *difference {
	i := slices.IndexFunc(list, func(d *difference) bool {
		return slices.Contains(d.Flows, flow) && (len(d.Families) == 0 || slices.Contains(d.Families, family))
	})
	if i < 0 {
		return nil
	}
	return list[i]
}

// compare compares the outcomes of a case's flows, by their keys, with each other and the list,
// and returns the problems.
func (list differences) compare(family string, c *applytest.Case, theirs, ours map[string]applytest.Outcome) (problems []string) {
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	known := map[string]bool{}
	for i, stage := range c.Stages() {
		for j := range stage.Flows {
			f := &stage.Flows[j]
			key := f.Key(i+1, j+1)
			flow := fmt.Sprintf("%s %d.%d", c.Name, i+1, j+1)
			known[flow] = true
			switch d := list.of(family, flow); {
			case d == nil && !f.Same(theirs[key], ours[key]):
				problem("%s %s\n  kube-proxy 1.25: %s\n  proxyc:          %s", c.Name, key, theirs[key], ours[key])
			case d != nil && (fate(theirs[key]) != d.KubeProxy || fate(ours[key]) != d.Proxyc):
				problem("%s %s: listed as %s and %s\n  kube-proxy 1.25: %s\n  proxyc:          %s", c.Name, key, d.KubeProxy, d.Proxyc, theirs[key], ours[key])
			}
		}
	}
	for _, d := range list {
		for _, flow := range d.Flows {
			if strings.HasPrefix(flow, c.Name+" ") && !known[flow] {
				problem("%s is listed, and no flow", flow)
			}
		}
	}
	return problems
}

// fate is an outcome in a word: served, or how tries failed.
func fate(o applytest.Outcome) string {
	switch failed, ok := o["failed"].([]any); {
	case ok:
		return strings.TrimSuffix(fmt.Sprintln(failed...), "\n")
	case o["reached"] != nil:
		return "served"
	}
	return o.String()
}

// oldProxy is kube-proxy's old proxier on a node.
type oldProxy struct {
	files   io.WriteCloser
	answers *bufio.Scanner
	log     *applytest.Buffer
	wait    func() error
}

// nodeIPs are the node's addresses. The proxier uses one of them, and its family.
var nodeIPs = map[string]string{applytest.IPv4: "192.0.2.11", applytest.IPv6: "2001:db8:0:1::11"}

// oldProxier returns a function that starts the proxier for a case.
func oldProxier(binary, family string) applytest.DaemonFunc {
	return func(ctx context.Context, node *applytest.Namespace, _, snapshotFile, _ string) (applytest.Daemon, error) {
		p := &oldProxy{log: &applytest.Buffer{}}
		cmd := node.Command(context.WithoutCancel(ctx), binary, "-node-ip", nodeIPs[family], "-udp-timeout", applytest.UDPIdle.String())
		cmd.Stderr = p.log
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		p.answers = bufio.NewScanner(stdout)
		if p.files, err = cmd.StdinPipe(); err != nil {
			return nil, err
		}
		if p.wait, err = node.Start(cmd); err != nil {
			return nil, err
		}
		if err := p.Update(ctx, snapshotFile); err != nil {
			return nil, errors.Join(err, p.Stop())
		}
		return p, nil
	}
}

// Update passes a snapshot file to the proxier, and waits for its rules.
func (p *oldProxy) Update(_ context.Context, snapshotFile string) error {
	if _, err := fmt.Fprintln(p.files, snapshotFile); err != nil {
		return fmt.Errorf("%w\n%s", err, p.log)
	}
	if !p.answers.Scan() || p.answers.Text() != "ok" {
		return fmt.Errorf("kube-proxy 1.25: %q\n%s", p.answers.Text(), p.log)
	}
	return nil
}

// Stop ends the proxier.
func (p *oldProxy) Stop() error {
	p.files.Close()
	return p.wait()
}
