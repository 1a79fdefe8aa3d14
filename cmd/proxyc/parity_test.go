package main

import (
	"cmp"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/proxyc/proxyc/cmd/proxyc/help"
	"sigs.k8s.io/yaml"
)

// parityCase is one of testdata/parity/cases.yaml, whose head says what it means.
type parityCase struct {
	Name   string   `json:"name"`
	Args   []string `json:"args"`
	File   *string  `json:"file"`
	Raw    *string  `json:"raw"`
	Late   bool     `json:"late"`
	Want   string   `json:"want"`
	Proxyc string   `json:"proxyc"`
	Why    string   `json:"why"`
}

// TestParityList judges each configuration and command line of the list, which
// e2e holds against a real kube-proxy, as the daemon does before it starts.
func TestParityList(t *testing.T) {
	data, err := os.ReadFile("../../testdata/parity/cases.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var cases []parityCase
	must(t, yaml.UnmarshalStrict(data, &cases))
	seen := map[string]bool{}
	for _, c := range cases {
		name := cmp.Or(c.Name, strings.Join(c.Args, " "))
		if seen[name] {
			t.Errorf("%s stands there twice", name)
		}
		seen[name] = true
		if (c.Proxyc == "") != (c.Why == "") || c.Proxyc == c.Want {
			t.Errorf("%s: proxyc differs if and only if a reason is given", name)
		}
		want := cmp.Or(c.Proxyc, c.Want)
		got, why := judged(&c)
		if c.Late {
			if got == "refuses" || want != "refuses" {
				t.Errorf("%s is not late: proxyc %s: %v", name, got, why)
			}
			continue
		}
		if got != want {
			t.Errorf("%s: proxyc %s, want %s: %v", name, got, want, why)
		}
	}
	if len(cases) < 800 {
		t.Errorf("only %d cases", len(cases))
	}
}

// judged returns what becomes of a case, as far as that depends on it alone.
func judged(c *parityCase) (outcome string, why error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case parserExit:
			outcome = "ends"
		default:
			panic(r)
		}
	}()
	args := c.Args
	text := c.Raw
	if c.File != nil {
		whole := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n" + *c.File
		text = &whole
	}
	if text != nil {
		args = append([]string{"--config=the file"}, args...)
	}
	var grown struct { // cli without the other verbs, which take most of the time to set up
		Watch        watchCmd    `cmd:""`
		PrintVersion versionFlag `name:"version"`
	}
	if _, err := kong.Must(&grown, grammar(io.Discard, io.Discard)...).Parse(help.Dashed(append([]string{"watch"}, args...))); err != nil {
		return "refuses", err
	}
	w := &grown.Watch
	for _, arg := range w.Rest {
		if arg != "" {
			return "refuses", errors.New(arg)
		}
	}
	_, findings := w.Resolve(func(name string) ([]byte, error) {
		if name == "the file" {
			return []byte(*text), nil
		}
		return os.ReadFile(name)
	}, w.Strict)
	switch {
	case findings.HasErrors():
		return "refuses", errors.New(findings[0].String())
	case w.InitOnly, w.Cleanup, deref(w.WriteConfigTo) != "":
		return "ends", nil
	}
	return "starts", nil
}
