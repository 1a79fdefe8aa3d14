package main

import (
	"fmt"
	"io/fs"
	"strings"

	"github.com/proxyc/proxyc/cmd/proxyc/help"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
)

// printWrong prints all errors of a command line, and where to find help.
func (e *env) printWrong(p help.Parsed) {
	var verb any
	if p.Context != nil && p.Selected() != nil {
		verb = p.Selected().Target.Addr().Interface()
	}
	e.printErrors(verb, p.Wrong)
	called := p.Verb
	if called != "" {
		called += " "
	}
	fmt.Fprintf(e.stderr, "Run \"%s\" for usage.\n", e.calls("proxyc "+called+"--help"))
}

// printErrors prints the errors of a command line and of the configuration that it selects, which
// would be reported next.
func (e *env) printErrors(verb any, wrong []error) {
	for _, err := range wrong {
		fmt.Fprintf(e.stderr, "proxyc: %s\n", strings.TrimSpace(err.Error()))
	}
	c, ok := verb.(interface {
		Resolve(func(string) ([]byte, error), bool) (*config.Resolved, diag.List)
	})
	if !ok {
		return
	}
	waits := false
	resolved, findings := c.Resolve(func(name string) ([]byte, error) {
		if waits = waits || name == "-"; waits {
			return nil, fs.ErrNotExist
		}
		return e.inputs().ReadFile(name)
	}, false)
	if waits { // the prompt of --write-config-to must not be shown for nothing
		return
	}
	if w, ok := verb.(*watchCmd); ok && resolved != nil && !findings.HasErrors() {
		findings.Add(w.withoutEffect(resolved.Config.ProxyMode())...)
	}
	e.report(findings)
}
