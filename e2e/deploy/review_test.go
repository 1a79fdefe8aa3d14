package deploy

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const (
	top       = "../.."
	actionDir = top + "/.github/actions/review"
)

// tools are the commands that the test binary stands for, by its name: "kustomize build DIR" and
// "helm template CHART", with the libraries of the real programs.
var tools = map[string]func(dir string) ([]byte, error){
	"kustomize": func(dir string) ([]byte, error) {
		m, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
		if err != nil {
			return nil, err
		}
		return m.AsYaml()
	},
	"helm": func(dir string) ([]byte, error) {
		files, err := Render(dir, nil)
		var out []byte
		for name, text := range files {
			out = fmt.Appendf(out, "---\n# Source: %s\n%s\n", name, text)
		}
		return out, err
	},
}

// runTool runs the tool of the program's name, if it is one.
func runTool() {
	run := tools[filepath.Base(os.Args[0])]
	if run == nil {
		return
	}
	out, err := run(os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Stdout.Write(out)
	os.Exit(0)
}

// job is a job of a workflow for a pull request: a clone with the changed files, whose remote has
// the base.
type job struct {
	t          *testing.T
	clone, tmp string
	env        []string
	gh         string // file with the arguments of gh
	body       string // description of the pull request
}

// newJob changes a repository with the files of testdata/review/git.
func newJob(t *testing.T, change func(dir string)) *job {
	tmp := t.TempDir()
	j := &job{t: t, clone: filepath.Join(tmp, "clone"), tmp: filepath.Join(tmp, "runner"), gh: filepath.Join(tmp, "gh.txt")}
	bin := filepath.Join(tmp, "bin")
	for _, dir := range []string{bin, j.tmp} {
		must(t, os.Mkdir(dir, 0o755))
	}
	self, err := os.Executable()
	must(t, err)
	for name := range tools {
		must(t, os.Symlink(self, filepath.Join(bin, name)))
	}
	must(t, os.WriteFile(filepath.Join(bin, "gh"), fmt.Appendf(nil, "#!/bin/sh\necho \"$@\" >>%s\n", j.gh), 0o755))
	j.env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "RUNNER_TEMP="+j.tmp, "GITHUB_BASE_REF=main",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	for _, name := range []string{"GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY"} {
		j.env = append(j.env, name+"="+filepath.Join(j.tmp, name))
	}
	origin := filepath.Join(tmp, "origin")
	must(t, os.CopyFS(origin, os.DirFS(top+"/testdata/review/git")))
	j.sh(origin, "git init -q -b main && git add . && git commit -q -m one")
	j.sh(tmp, "git clone -q origin clone")
	change(j.clone)
	j.sh(j.clone, "git checkout -q -b change && git commit -q -a -m two")
	return j
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (j *job) sh(dir, command string) {
	j.t.Helper()
	cmd := exec.Command("bash", "-c", command)
	cmd.Dir, cmd.Env = dir, j.env
	if out, err := cmd.CombinedOutput(); err != nil {
		j.t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// read returns a file that the action wrote.
func (j *job) read(name string) string {
	data, err := os.ReadFile(filepath.Join(j.tmp, name))
	must(j.t, err)
	return string(data)
}

// expression matches what a runner replaces.
var expression = regexp.MustCompile(`\$\{\{ *([^}]*?) *\}\}`)

// run runs the steps of the action as a runner does, and returns the error of the first that fails,
// with what it printed.
func (j *job) run(with map[string]string) error {
	var action struct {
		Inputs map[string]struct{ Default string }
		Runs   struct {
			Steps []struct {
				ID, If, Run, Shell string
				Env                map[string]string
			}
		}
	}
	data, err := os.ReadFile(actionDir + "/action.yml")
	must(j.t, err)
	must(j.t, yaml.Unmarshal(data, &action))
	for name := range with {
		if _, ok := action.Inputs[name]; !ok {
			j.t.Fatalf("the action has no input %s", name)
		}
	}
	path, err := filepath.Abs(actionDir)
	must(j.t, err)
	values := map[string]string{"github.action_path": path, "github.action_ref": "main", "github.token": "secret", "github.event.number": "7", "github.event.pull_request.body": j.body}
	for name, input := range action.Inputs {
		values["inputs."+name] = input.Default
		if value, ok := with[name]; ok {
			values["inputs."+name] = value
		}
	}
	value := func(text string) string {
		return expression.ReplaceAllStringFunc(text, func(match string) string {
			for name := range strings.SplitSeq(expression.FindStringSubmatch(match)[1], " || ") {
				v, ok := values[name]
				if !ok {
					j.t.Fatalf("%s: unknown", match)
				}
				if v != "" {
					return v
				}
			}
			return ""
		})
	}
	for _, s := range action.Runs.Steps {
		if name, want, ok := strings.Cut(s.If, " == "); ok && values[name] != strings.Trim(want, "'") {
			continue
		}
		cmd := exec.Command(s.Shell, "--noprofile", "--norc", "-eo", "pipefail", "-c", s.Run)
		cmd.Dir, cmd.Env = j.clone, append(j.env, "PATH="+j.path())
		for name, text := range s.Env {
			cmd.Env = append(cmd.Env, name+"="+value(text))
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		written, _ := os.ReadFile(filepath.Join(j.tmp, "GITHUB_OUTPUT"))
		for line := range strings.Lines(string(written)) {
			name, v, _ := strings.Cut(strings.TrimSpace(line), "=")
			values["steps."+s.ID+".outputs."+name] = v
		}
	}
	return nil
}

// path returns PATH with the directories that earlier steps added.
func (j *job) path() string {
	path := ""
	for _, v := range j.env {
		if text, ok := strings.CutPrefix(v, "PATH="); ok {
			path = text
		}
	}
	added, _ := os.ReadFile(filepath.Join(j.tmp, "GITHUB_PATH"))
	for dir := range strings.FieldsSeq(string(added)) {
		path = dir + ":" + path
	}
	return path
}

// replace replaces text in a file.
func replace(t *testing.T, file, old, new string) {
	t.Helper()
	data, err := os.ReadFile(file)
	must(t, err)
	if !bytes.Contains(data, []byte(old)) {
		t.Fatalf("%s lacks %q", file, old)
	}
	must(t, os.WriteFile(file, bytes.ReplaceAll(data, []byte(old), []byte(new)), 0o644))
}

// TestAction runs the action for pull requests in repositories with kustomize and Helm.
func TestAction(t *testing.T) {
	release := t.TempDir()
	file := "proxyc-" + runtime.GOOS + "-" + runtime.GOARCH
	build := exec.Command("go", "build", "-o", filepath.Join(release, "v1.2.3", file), "./cmd/proxyc")
	build.Dir = top
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	program, err := os.ReadFile(filepath.Join(release, "v1.2.3", file))
	must(t, err)
	sums := filepath.Join(release, "v1.2.3", "SHA256SUMS")
	must(t, os.WriteFile(sums, fmt.Appendf(nil, "%x  %s\n", sha256.Sum256(program), file), 0o644))
	t.Setenv("RELEASES", "file://"+release)

	kustomize := map[string]string{"render": "kustomize build overlays/prod", "version": "v1.2.3"}
	t.Run("opened", func(t *testing.T) {
		j := newJob(t, func(dir string) {
			replace(t, filepath.Join(dir, "base/admin.yaml"), "  loadBalancerSourceRanges: [198.51.100.0/24]\n", "")
		})
		if err := j.run(kustomize); err == nil || !strings.Contains(err.Error(), "exit status 1") {
			t.Errorf("the action must fail with exit code 1, got %v", err)
		}
		if text := j.read("review/short.md"); !strings.HasPrefix(text, "**Failed: opens 1.**\n") {
			t.Errorf("the comment must begin with the reason:\n%s", text)
		}
		for _, name := range []string{"review/comment.md", "GITHUB_STEP_SUMMARY"} {
			if text := j.read(name); !strings.Contains(text, "opens") || !strings.Contains(text, "shop/admin") || strings.Contains(text, "shop/web") {
				t.Errorf("%s must show what opens of shop/admin alone:\n%s", name, text)
			}
		}
		if text := j.read("review/report.html"); !strings.Contains(text, "<title>proxyc report</title>") || !strings.HasSuffix(text, "</html>\n") {
			t.Error("the report is not complete")
		}
		if text := j.read("review/lint.sarif"); !strings.Contains(text, `"version": "2.1.0"`) {
			t.Errorf("lint.sarif is:\n%s", text)
		}
		args, err := os.ReadFile(j.gh)
		must(t, err)
		if got, want := string(args), "pr comment 7 --edit-last --create-if-none --body-file "+j.tmp+"/review/short.md\n"; got != want {
			t.Errorf("gh %s, want %s", got, want)
		}
	})
	t.Run("accepted by a fork", func(t *testing.T) {
		j := newJob(t, func(dir string) {
			replace(t, filepath.Join(dir, "base/admin.yaml"), "  loadBalancerSourceRanges: [198.51.100.0/24]\n", "")
		})
		j.body = "Opens the page.\r\nproxyc opens Service shop/admin # for all\r\n"
		must(t, os.WriteFile(filepath.Join(filepath.Dir(j.gh), "bin/gh"), []byte("#!/bin/sh\nexit 1\n"), 0o755))
		if err := j.run(kustomize); err != nil {
			t.Error(err)
		}
		if text := j.read("review/comment.md"); !strings.HasPrefix(text, "**Passed: 1 Service changed.**\n\nAccepted: opens shop/admin for all.\n") {
			t.Errorf("the comment must state what is accepted:\n%s", text)
		}
	})
	t.Run("broken", func(t *testing.T) {
		j := newJob(t, func(dir string) { replace(t, filepath.Join(dir, "base/admin.yaml"), "kind: Service", "kind: [") })
		if err := j.run(map[string]string{"path": "base/admin.yaml", "version": "v1.2.3"}); err == nil || !strings.Contains(err.Error(), "exit status 2") {
			t.Errorf("the action must fail with exit code 2, got %v", err)
		}
		if text := j.read("review/comment.md"); !strings.HasPrefix(text, "**Failed: ") || !strings.Contains(text, "admin.yaml") {
			t.Errorf("the comment must name the file:\n%s", text)
		}
	})
	t.Run("more replicas", func(t *testing.T) {
		j := newJob(t, func(dir string) {
			replace(t, filepath.Join(dir, "overlays/prod/kustomization.yaml"), "value: 6", "value: 7")
		})
		if err := j.run(kustomize); err != nil {
			t.Error(err)
		}
		if text := j.read("review/comment.md"); !strings.Contains(text, "shop/web") {
			t.Errorf("the comment lacks shop/web:\n%s", text)
		}
	})
	t.Run("misspelt in a chart", func(t *testing.T) {
		j := newJob(t, func(dir string) {
			replace(t, filepath.Join(dir, "chart/templates/cart.yaml"), "targetPort: http", "targetPort: htp")
		})
		err := j.run(map[string]string{"render": "helm template chart", "version": "v1.2.3", "comment": "false"})
		if err == nil || !strings.Contains(err.Error(), "exit status 1") {
			t.Errorf("the action must fail with exit code 1, got %v", err)
		}
		if text := j.read("review/comment.md"); !strings.Contains(text, "htp") {
			t.Errorf("the comment lacks the port htp:\n%s", text)
		}
		if _, err := os.Stat(j.gh); err == nil {
			t.Error("gh ran")
		}
	})
	t.Run("built", func(t *testing.T) {
		j := newJob(t, func(dir string) { replace(t, filepath.Join(dir, "chart/values.yaml"), "9000", "9001") })
		err := j.run(map[string]string{"render": "helm template chart", "comment": "false"})
		if err == nil || !strings.Contains(err.Error(), "exit status 1") {
			t.Errorf("the old port is lost: the action must fail with exit code 1, got %v", err)
		}
		if text := j.read("review/comment.md"); !strings.Contains(text, "lost") {
			t.Errorf("the comment lacks what is lost:\n%s", text)
		}
	})
	t.Run("wrong checksum", func(t *testing.T) {
		must(t, os.WriteFile(sums, fmt.Appendf(nil, "%x  %s\n", sha256.Sum256([]byte("other")), file), 0o644))
		j := newJob(t, func(dir string) { replace(t, filepath.Join(dir, "chart/values.yaml"), "9000", "9001") })
		if err := j.run(kustomize); err == nil || !strings.Contains(err.Error(), file+": FAILED") {
			t.Errorf("the action must not install the program, got %v", err)
		}
	})
}

// TestPreCommit runs the hooks for pre-commit with the changes of a commit.
func TestPreCommit(t *testing.T) {
	var hooks []struct {
		ID, Entry, Language string
		Args                []string
	}
	data, err := os.ReadFile(top + "/.pre-commit-hooks.yaml")
	must(t, err)
	must(t, yaml.Unmarshal(data, &hooks))
	for _, h := range hooks {
		if h.Language != "golang" {
			t.Errorf("%s: language %s: pre-commit builds only golang from a pinned revision", h.ID, h.Language)
		}
		bin := t.TempDir()
		build := exec.Command("go", "install", "./...") // as pre-commit does
		build.Dir = top
		build.Env = append(os.Environ(), "GOBIN="+bin)
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		repo := t.TempDir()
		must(t, os.CopyFS(repo, os.DirFS(top+"/testdata/review/git/base")))
		run := func() (string, error) {
			cmd := exec.Command("sh", append([]string{"-c", h.Entry + ` "$@"`, "sh"}, h.Args...)...)
			cmd.Dir, cmd.Env = repo, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			return string(out), err
		}
		if out, err := run(); err != nil {
			t.Errorf("%s: %v\n%s", h.ID, err, out)
		}
		replace(t, filepath.Join(repo, "web.yaml"), "targetPort: http", "targetPort: htp")
		if out, err := run(); err == nil || !strings.Contains(out, "htp") {
			t.Errorf("%s: must find the port htp, got %v\n%s", h.ID, err, out)
		}
	}
}
