// Test runs the tests of modules, and ends with one line that says what ran:
//
//	go run ./.ci/test -name 'tier 1' -rest 'make e2e' -dirs .,e2e/page [-slowest 20] -- FLAGS...
//
// FLAGS are those of go test. It prints the output of tests that fail, and how to repeat each.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

// event is a line of go test -json.
type event struct {
	Action, Package, Test, Output, FailedBuild string
	Elapsed                                    float64
}

// tests are the results of go test so far.
type tests struct {
	output                            map[string][]string // by package and test
	took                              map[string]float64
	passed, failed, skipped, packages int
	broken                            int    // packages
	tags                              string // flag of go test
	last                              string // test that failed
}

func main() {
	log.SetFlags(0)
	name := flag.String("name", "", "what these tests are")
	rest := flag.String("rest", "", "how to run the others")
	dirs := flag.String("dirs", ".", "directories of modules")
	slowest := flag.Int("slowest", 0, "list so many of the slowest tests and packages")
	flag.Parse()
	began, ok := time.Now(), true
	r := &tests{output: map[string][]string{}, took: map[string]float64{}}
	if i := slices.Index(flag.Args(), "-tags"); i >= 0 {
		r.tags = "-tags " + flag.Arg(i+1) + " "
	}
	for dir := range strings.SplitSeq(*dirs, ",") {
		if err := r.run(dir, flag.Args()); err != nil {
			fmt.Printf("FAIL  module %s: %v\n", dir, err)
			ok = false
		}
	}
	all := make([]string, 0, len(r.took))
	for name := range r.took {
		all = append(all, name)
	}
	slices.SortFunc(all, func(a, b string) int { return cmp.Compare(r.took[b], r.took[a]) })
	for _, name := range all[:min(*slowest, len(all))] {
		fmt.Printf("%8.1f s  %s\n", r.took[name], name)
	}
	fmt.Printf("%s: %d tests in %d packages passed, %d failed, %d skipped, %d packages failed, in %s; the rest: %s\n",
		*name, r.passed, r.packages, r.failed, r.skipped, r.broken, time.Since(began).Round(time.Second), *rest)
	if !ok || r.failed+r.broken > 0 {
		os.Exit(1)
	}
}

// run runs the tests of the module in dir, except those of Windows, which have a target of their own.
func (r *tests) run(dir string, flags []string) error {
	list := exec.Command("go", "list", "./...")
	list.Dir, list.Stderr = dir, os.Stderr
	out, err := list.Output()
	if err != nil {
		return err
	}
	packages := slices.DeleteFunc(strings.Fields(string(out)), func(p string) bool { return strings.HasSuffix(p, "e2e/windows") })
	cmd := exec.Command("go", slices.Concat([]string{"test", "-json"}, flags, packages)...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	for lines := bufio.NewReader(pipe); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return cmd.Wait()
		}
		var e event
		if json.Unmarshal(line, &e) == nil {
			r.add(dir, &e)
		} else {
			fmt.Print(string(line))
		}
	}
}

// add counts what an event ends, and prints the output of what fails.
func (r *tests) add(dir string, e *event) {
	name := strings.TrimSpace(e.Package + " " + e.Test)
	switch e.Action {
	case "build-output":
		fmt.Print(e.Output)
	case "output":
		r.output[name] = append(r.output[name], e.Output)
		return
	case "fail":
		fmt.Print(strings.Join(r.output[name], ""))
		if e.Test == "" { // a panic or a timeout leaves tests without a result
			for left, output := range r.output {
				if strings.HasPrefix(left, e.Package+" ") {
					fmt.Print(strings.Join(output, ""))
				}
			}
			r.broken++
			break
		}
		if strings.HasPrefix(r.last, name+"/") {
			break // its part is counted
		}
		r.failed++
		r.last = name
		fmt.Printf("repeat: cd %s && go test %s -count=1 %s-run '^%s$'\n", dir, e.Package, r.tags, strings.ReplaceAll(regexp.QuoteMeta(e.Test), "/", "$/^"))
	case "skip":
		if e.Test != "" {
			r.skipped++
		}
	case "pass":
		if e.Test == "" {
			r.packages++
			fmt.Printf("ok    %s %.0f s\n", e.Package, e.Elapsed)
		} else {
			r.passed++
		}
	default:
		return
	}
	delete(r.output, name)
	if !strings.Contains(e.Test, "/") {
		r.took[name] = e.Elapsed
	}
}
