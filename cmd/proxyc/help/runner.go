package help

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// runner is the program with which kOps starts kube-proxy: go-runner of Kubernetes' images runs the
// program in its arguments, and copies the output to a file.
const runner = "go-runner"

// Enter returns the arguments of the program to run and its outputs. They are the given ones unless the
// first argument is go-runner. Wrong arguments end the process.
func Enter(args []string, stdout, stderr io.Writer) ([]string, io.Writer, io.Writer) {
	if filepath.Base(args[0]) != runner {
		return args, stdout, stderr
	}
	rest, log, err := runnerArgs(args[1:], stdout)
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", runner, err)
		os.Exit(2)
	}
	if log != nil {
		return rest, log, log
	}
	return rest, stdout, stderr
}

// runnerArgs returns the arguments of the program and the output of --log-file; nil without one.
func runnerArgs(args []string, stdout io.Writer) (rest []string, out io.Writer, err error) {
	flags := flag.NewFlagSet(runner, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	file := flags.String("log-file", "", "")
	also := flags.Bool("also-stdout", false, "")
	flags.Bool("redirect-stderr", true, "") // the file always has both
	if err := flags.Parse(args); err != nil {
		return nil, nil, err
	}
	if flags.NArg() == 0 {
		return nil, nil, errors.New("must be followed by a program and its arguments")
	}
	if *file != "" {
		out, err = os.OpenFile(*file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	}
	if err == nil && *also && out != nil {
		out = io.MultiWriter(stdout, out)
	}
	return flags.Args(), out, err
}
