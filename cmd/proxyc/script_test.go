package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// commands are the programs that tests can start, which are all this one.
var commands = map[string]func(){"proxyc": quick, "kube-proxy": quick, "kubectl-proxyc": quick, "kubectl_complete-proxyc": quick, "go-runner": quick}

// quick is main with a daemon that sees changes of its files sooner.
func quick() {
	e := osEnv()
	e.poll = 50 * time.Millisecond
	os.Exit(start(e))
}

func TestMain(m *testing.M) { testscript.Main(m, commands) }

// TestScript runs the command line as users do: testdata/script.
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "../../testdata/script",
		UpdateScripts:       *update,
		RequireUniqueNames:  true,
		RequireExplicitExec: true,
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", e.WorkDir)
			takeover, err := filepath.Abs("../../testdata/apply/takeover")
			e.Setenv("TAKEOVER", takeover)
			releases, err2 := filepath.Abs("../../testdata/prove")
			e.Setenv("RELEASES", releases)
			return errors.Join(err, err2)
		},
	})
}

// exits runs a command and checks its exit code: exits CODE COMMAND ARGS...
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}
