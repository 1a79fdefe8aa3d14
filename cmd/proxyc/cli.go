package main

import (
	"cmp"
	"errors"
	"fmt"
	"github.com/proxyc/proxyc/cmd/proxyc/terminal"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/cmd/proxyc/help"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/trace"
	"github.com/proxyc/proxyc/compiler/diag"
)

// Exit codes of every command.
const (
	exitDone     = 0
	exitFindings = 1 // differences or findings: diff, lint, explain
	exitBad      = 2 // bad input, usage, I/O
)

// cli is the grammar of the command line.
type cli struct {
	Status   statusCmd   `cmd:"" help:"Show the status of this node's daemon or, with --context or --kubeconfig, of those of all Nodes." group:"Look at a node or a cluster:"`
	Top      topCmd      `cmd:"" help:"Show the Services of this node by new connections, and those that refuse." group:"Look at a node or a cluster:"`
	Doctor   doctorCmd   `cmd:"" help:"Check this node: kernel features, foreign rules, the API server." group:"Look at a node or a cluster:"`
	Trace    traceCmd    `cmd:"" help:"Trace a packet through the rules, step by step." group:"Look at a node or a cluster:"`
	Explain  explainCmd  `cmd:"" help:"Show which Services and fields a rule, address or port comes from." group:"Look at a node or a cluster:"`
	Flows    flowsCmd    `cmd:"" help:"Show the connections of Services, and what is wrong with them." group:"Look at a node or a cluster:"`
	Snapshot snapshotCmd `cmd:"" help:"Save a snapshot of a cluster to a file, redacted on request." group:"Look at a node or a cluster:"`
	Record   recordCmd   `cmd:"" help:"Record the objects of an API server, and every change." group:"Look at a node or a cluster:"`

	Apply   applyCmd   `cmd:"" help:"Write the rules of a node once, or show what would change." group:"Change a node:"`
	Watch   watchCmd   `cmd:"" help:"Run the daemon, in place of kube-proxy." group:"Change a node:"`
	Cleanup cleanupCmd `cmd:"" help:"Remove the rules of proxyc and kube-proxy, of every mode." group:"Change a node:"`
	Migrate migrateCmd `cmd:"" help:"Plan a change of the proxy mode, and its way back." group:"Change a node:"`

	Compile compileCmd `cmd:"" help:"Compile a configuration and a snapshot into the rules of a node." group:"Review, by hand or in CI:"`
	Lint    lintCmd    `cmd:"" help:"Check a configuration and a snapshot for errors and risks." group:"Review, by hand or in CI:"`
	Diff    diffCmd    `cmd:"" help:"Show which flows and settings a change affects." group:"Review, by hand or in CI:"`
	Assert  assertCmd  `cmd:"" help:"Check that contracts hold: which clients may reach which Services." group:"Review, by hand or in CI:"`
	Prove   proveCmd   `cmd:"" help:"Prove that two sets of rules handle every first packet alike." group:"Review, by hand or in CI:"`
	Report  reportCmd  `cmd:"" help:"Write a report about a cluster, as one HTML page or as Markdown." group:"Review, by hand or in CI:"`
	Replay  replayCmd  `cmd:"" help:"Replay a recording, and show the flows that each change affects." group:"Review, by hand or in CI:"`
	Config  configCmd  `cmd:"" help:"Show and check configurations." group:"Review, by hand or in CI:"`

	Demo       demoCmd       `cmd:"" help:"Compile a small built-in cluster, and trace packets through it." group:"Other:"`
	Version    versionCmd    `cmd:"" help:"Print the version." group:"Other:"`
	Completion completionCmd `cmd:"" help:"Print the completion script of a shell." group:"Other:"`
	Man        manCmd        `cmd:"" help:"Print the manual page of a verb, or write all of them." group:"Other:"`

	PrintVersion versionFlag `name:"version" help:"Print the version and exit."`
}

// errFindings is the error of a command that completed and found something: exit code 1.
var errFindings = errors.New("findings")

// errReported is the error of a command that printed its errors as diagnostics: exit code 2.
var errReported = errors.New("reported")

// parserExit is the exit code that kong requests, for --help.
type parserExit int

// run runs the program and returns its exit code.
func run(e *env) (code int) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case parserExit:
			code = int(r)
		default:
			panic(r)
		}
	}()
	e, begin, end := e.forPeople()
	defer end()
	args, all := help.Args(help.Dashed(e.args))
	parser := kong.Must(grammarOf(args), append(grammar(e.stdout, e.stderr), append(help.Options(all, e.calls), kong.Name(cmp.Or(e.name, programName)))...)...)
	if len(e.args) > 0 && e.args[0] == help.Complete {
		return e.exitCode(help.WriteCandidates(e.stdout, parser, e.args[1:], func(files []string) map[string][]string { return trace.Names(e.inputs(), files) }))
	}
	ctx := help.Parse(parser, args)
	if len(ctx.Wrong) > 0 {
		e.printWrong(ctx)
		return exitBad
	}
	begin(slices.Contains(coloured, ctx.Verb) && ctx.PrintsText())
	return e.exitCode(ctx.Run(e))
}

// grammarOf returns a cli with only the command that the arguments start with, since building all
// commands takes most of the time of a short run. Without a command it returns all.
func grammarOf(args []string) any {
	all := reflect.TypeFor[cli]()
	for f := range all.Fields() {
		if _, verb := f.Tag.Lookup("cmd"); verb && len(args) > 0 && strings.ToLower(f.Name) == args[0] {
			version, _ := all.FieldByName("PrintVersion")
			return reflect.New(reflect.StructOf([]reflect.StructField{f, version})).Interface()
		}
	}
	return new(cli)
}

// grammar returns the options of the parser.
func grammar(stdout, stderr io.Writer) []kong.Option {
	return []kong.Option{
		kong.Name(programName),
		kong.Description("Compile a kube-proxy configuration and a snapshot of a cluster into the rules of a node."),
		kong.UsageOnError(),
		kong.Writers(stdout, stderr),
		kong.KindMapper(reflect.Bool, help.Switches{}),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), help.Durations{}),
		kong.Exit(func(code int) { panic(parserExit(code)) }),
		kong.PostBuild(func(k *kong.Kong) error {
			k.Model.HelpFlag.Help = "Show help; --help=all shows all flags and their full texts."
			return nil
		}),
	}
}

func (e *env) exitCode(err error) int {
	if s, is := errors.AsType[terminal.Signalled](err); is {
		return s.Status()
	}
	switch {
	case err == nil, errors.Is(err, errDone):
		return exitDone
	case errors.Is(err, errFindings):
		return exitFindings
	case !errors.Is(err, errReported):
		fmt.Fprintf(e.stderr, "proxyc: %s\n", err)
	}
	return exitBad
}

// report prints diagnostics in order, one per line.
func (e *env) report(list diag.List) {
	for _, d := range list.Sorted() {
		fmt.Fprintf(e.stderr, "%s: %s\n", d.Severity, d)
	}
}

// print writes the output of a command as text or, if output is json, as JSON.
func (e *env) print(output string, text, json func(io.Writer) error) error {
	if output == "json" {
		text = json
	}
	return review.Buffered(e.stdout, text)
}
