// Command mutate plants single faults into compiler, render and apply, and reports which of
// them the tests find. Flag seed repeats a choice; nothing in the repository is written.
//
// A fault negates a condition, removes a call whose result is not used, or removes a statement
// that locks or unlocks. For each fault the tests of its package run first, then those of the
// packages that depend on it, until one fails, all as make test runs them. For a fault that they
// miss, run make test with the printed GOFLAGS=-overlay=FILE.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"iter"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A fault replaces text[from:to] of a file by with.
type fault struct {
	file, kind, line string
	from, to         int
	with             string
}

func main() {
	log.SetFlags(0)
	seed := flag.Uint64("seed", 1, "chooses the faults")
	n := flag.Int("n", 40, "number of faults")
	skip := flag.Int("skip", 0, "faults of the choice to skip")
	flag.Parse()
	work, err := os.MkdirTemp("", "mutate")
	if err != nil {
		log.Fatal(err)
	}
	found, tried := 0, 0
	for f := range choices(*seed) {
		if tried == *n {
			break
		}
		began := time.Now()
		overlay := f.plant(filepath.Join(work, fmt.Sprint(tried)))
		if _, err := run("go", "build", "-overlay", overlay, filepath.Dir(f.file)); err != nil {
			continue // it does not compile
		}
		if tried++; tried <= *skip {
			continue
		}
		by := f.find(overlay)
		if by != "" {
			found++
		} else {
			by = "NOT FOUND, " + overlay
		}
		fmt.Printf("%d %s %s: %s (%v)\n", tried, f.line, f.kind, by, time.Since(began).Round(time.Second))
	}
	fmt.Printf("%d of %d found\n", found, *n-*skip)
}

// choices returns random faults, no two of them in one file.
func choices(seed uint64) iter.Seq[*fault] {
	kinds := map[string][]fault{}
	for _, file := range files() {
		for _, f := range faults(file) {
			kinds[f.kind] = append(kinds[f.kind], f)
		}
	}
	random := rand.New(rand.NewPCG(seed, 0))
	return func(yield func(*fault) bool) {
		used := map[string]bool{}
		for i := 0; ; i++ {
			of := kinds[[]string{"negates a condition", "removes a call", "negates a condition", "removes a lock"}[i%4]]
			f := &of[random.IntN(len(of))]
			if used[f.file] {
				continue
			}
			used[f.file] = true
			if !yield(f) {
				return
			}
		}
	}
}

// files lists the files that this system compiles, except test support.
func files() []string {
	out := output("go", "list", "-f", `{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}`, "./compiler/...", "./render/...", "./apply/...")
	return slices.DeleteFunc(strings.Fields(out), func(f string) bool { return strings.Contains(filepath.Dir(f), "test") })
}

func faults(file string) (all []fault) {
	here, err := os.Getwd()
	if err != nil {
		log.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		log.Fatal(err)
	}
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, text, 0)
	if err != nil {
		log.Fatal(err)
	}
	add := func(n ast.Node, kind, with string) {
		from, to := set.Position(n.Pos()), set.Position(n.End())
		name, err := filepath.Rel(here, file)
		if err != nil {
			log.Fatal(err)
		}
		all = append(all, fault{file, kind, fmt.Sprintf("%s:%d", name, from.Line), from.Offset, to.Offset, with})
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt:
			c := text[set.Position(n.Cond.Pos()).Offset:set.Position(n.Cond.End()).Offset]
			add(n.Cond, "negates a condition", "!("+string(c)+")")
		case *ast.ExprStmt:
			call, _ := n.X.(*ast.CallExpr)
			if call == nil {
				return true
			}
			switch name := string(text[set.Position(call.Fun.Pos()).Offset:set.Position(call.Fun.End()).Offset]); {
			case strings.HasSuffix(name, "Lock"):
				add(n, "removes a lock", "")
			case name != "panic":
				add(n, "removes a call", "")
			}
		case *ast.DeferStmt:
			if s, ok := n.Call.Fun.(*ast.SelectorExpr); ok && strings.HasSuffix(s.Sel.Name, "Unlock") {
				add(n, "removes a lock", "")
			}
		}
		return true
	})
	return all
}

// plant writes the file with the fault, and returns an overlay that contains it.
func (f *fault) plant(dir string) (overlay string) {
	text, err := os.ReadFile(f.file)
	if err != nil {
		log.Fatal(err)
	}
	text = slices.Concat(text[:f.from], []byte(f.with), text[f.to:])
	overlay = filepath.Join(dir, "overlay.json")
	replaced := filepath.Join(dir, filepath.Base(f.file))
	doc, err := json.Marshal(map[string]any{"Replace": map[string]string{f.file: replaced}})
	if err := errors.Join(err, os.MkdirAll(dir, 0o755), os.WriteFile(replaced, text, 0o644), os.WriteFile(overlay, doc, 0o644)); err != nil {
		log.Fatal(err)
	}
	return overlay
}

// find returns the package and the test that find the fault; "" if none does.
func (f *fault) find(overlay string) string {
	own := strings.TrimSpace(output("go", "list", filepath.Dir(f.file)))
	for _, p := range slices.Concat([]string{own}, dependents(own)) {
		out, err := run("go", "test", "-overlay", overlay, "-failfast", "-parallel", "4", "-timeout", "10m", p)
		if err != nil {
			return p + ": " + firstLine(out)
		}
	}
	return ""
}

// dependents lists the packages whose tests depend on package p, slow ones last.
func dependents(p string) (all []string) {
	seen := map[string]bool{p: true}
	for line := range strings.Lines(output("go", "list", "-test", "-f", `{{if .ForTest}}{{.ForTest}} {{join .Deps " "}}{{end}}`, "./...")) {
		words := strings.Fields(line)
		for _, w := range words[min(1, len(words)):] {
			if (w == p || strings.HasPrefix(line, w+" ["+p)) && !seen[words[0]] {
				seen[words[0]] = true
				all = append(all, words[0])
			}
		}
	}
	long := func(p string) int {
		return max(0, slices.Index([]string{"apply/iptables", "apply/nftables", "apply/applytest", "cmd/proxyc"}, strings.TrimPrefix(p, "github.com/proxyc/proxyc/"))+1)
	}
	slices.SortStableFunc(all, func(a, b string) int { return long(a) - long(b) })
	return all
}

func firstLine(out []byte) string {
	for line := range bytes.Lines(out) {
		if bytes.Contains(line, []byte("--- FAIL")) || bytes.HasPrefix(line, []byte("panic:")) || bytes.HasPrefix(line, []byte("fatal error:")) {
			return strings.TrimSpace(string(line))
		}
	}
	return strings.TrimSpace(string(out[:min(len(out), 200)]))
}

func run(name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	return exec.CommandContext(ctx, name, args...).CombinedOutput()
}

func output(name string, args ...string) string {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		log.Fatal(err)
	}
	return string(out)
}
