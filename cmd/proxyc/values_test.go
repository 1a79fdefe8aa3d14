package main

import (
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
)

// No verb has a flag that takes a time which is negative.
func TestDurationsAreNotNegative(t *testing.T) {
	parser := kong.Must(&cli{}, grammar(io.Discard, io.Discard)...)
	seen := 0
	for _, verb := range parser.Model.Leaves(true) {
		for _, f := range verb.Flags {
			if f.Target.Type() != reflect.TypeFor[time.Duration]() {
				continue
			}
			seen++
			for value, want := range map[string]string{"-5s": "", "5": "", "": "", "0": "ok", "1h30m": "ok"} {
				for _, args := range [][]string{{"--" + f.Name + "=" + value}, {"--" + f.Name, value}} {
					_, err := parser.Parse(slices.Concat(strings.Fields(verb.Path()), args))
					reported := err != nil && strings.Contains(err.Error(), "--"+f.Name+": must be a duration such as 30s or 1h30m, not negative, got \""+value+"\"")
					if reported != (want == "") {
						t.Errorf("%s %q: got %v", verb.Path(), args, err)
					}
				}
			}
		}
	}
	if _, err := parser.Parse([]string{"watch", "--ipvs-tcp-timeout", "-1s"}); err != nil {
		t.Errorf("kube-proxy's own, which its configuration lets be negative in other modes: %v", err)
	}
	if seen < 5 {
		t.Errorf("only %d flags take a time", seen)
	}
}
