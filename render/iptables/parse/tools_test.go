package parse

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/irtest"
	"github.com/proxyc/proxyc/render/iptables"
	"github.com/proxyc/proxyc/render/iptables/iptest"
)

// variants of the tools: the last word before -restore and -save.
var variants = []string{"nft", "legacy"}

// inNamespace runs a shell script in a new network namespace, in which iptables
// and ip6tables are those of a variant.
func inNamespace(t *testing.T, variant, dir, script string) string {
	t.Helper()
	applytest.RequireRoot(t)
	var wrappers strings.Builder
	for _, tool := range []string{"iptables", "ip6tables"} {
		for _, verb := range []string{"-restore", "-save"} {
			path, err := exec.LookPath(tool + "-" + variant + verb)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(path, filepath.Join(dir, tool+verb)); err != nil && !os.IsExist(err) {
				t.Fatal(err)
			}
		}
	}
	cmd := exec.Command("unshare", "--net", "sh", "-euc", wrappers.String()+script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "XTABLES_LOCKFILE="+filepath.Join(dir, "lock"))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s, %s: %v\n%s", variant, script, err, stderr.String())
	}
	return stdout.String()
}

// write writes the outputs of programs to a directory.
func write(t *testing.T, programs ir.Programs) (dir string, outputs []string) {
	t.Helper()
	dir = t.TempDir()
	for _, o := range iptables.LowerAll(programs).Outputs() {
		var b bytes.Buffer
		if err := o.Write(&b); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, o.File), b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		outputs = append(outputs, o.Load)
	}
	return dir, outputs
}

func TestToolsTakeTheText(t *testing.T) {
	for name, programs := range map[string]ir.Programs{"one of each": iptest.Both(), "many": ir.NewPrograms(iptest.Many(ir.IPv4, 300, 3), iptest.Many(ir.IPv6, 300, 3))} {
		for _, variant := range variants {
			t.Run(name+"/"+variant, func(t *testing.T) {
				dir, _ := write(t, programs)
				inNamespace(t, variant, dir, `
					iptables-restore --test iptables.rules; iptables-restore --test --noflush iptables.rules
					ip6tables-restore --test ip6tables.rules; ip6tables-restore --test --noflush ip6tables.rules`)
			})
		}
	}
}

// TestLoadAgain runs the command of Output.Load twice. Jumps must not be
// duplicated.
func TestLoadAgain(t *testing.T) {
	for _, variant := range variants {
		t.Run(variant, func(t *testing.T) {
			dir, load := write(t, iptest.Both())
			var scripts []string
			for _, l := range load {
				tool, _, _ := strings.Cut(strings.TrimPrefix(l, "{ "), "-save")
				scripts = append(scripts, l, tool+"-save | grep -v '^#' >once", l, tool+"-save | grep -v '^#' >twice", "cat once", "diff once twice >&2")
			}
			saved := inNamespace(t, variant, dir, strings.Join(scripts, "\n"))
			for _, family := range []string{"203.0.113.10/32", "2001:db8:203::10/128"} {
				if !strings.Contains(saved, family) {
					t.Errorf("%s is not in the kernel:\n%s", family, saved)
				}
			}
		})
	}
}

// TestSavedJumps compares the jumps with the output of iptables-save, because the
// command of Output.Load compares their text.
func TestSavedJumps(t *testing.T) {
	for _, variant := range variants {
		t.Run(variant, func(t *testing.T) {
			dir, load := write(t, iptest.Both())
			saved := inNamespace(t, variant, dir, load[0]+"\niptables-save")
			r := iptables.Lower(iptest.Both().IPv4)
			for _, table := range r.Tables() {
				var want []string
				for _, h := range table.Jumps {
					want = append(want, "-A "+h.Chain+" "+string(h.Rule.Append(nil, ir.IPv4)))
				}
				_, text, _ := strings.Cut(saved, "*"+table.Name)
				text, _, _ = strings.Cut(text, "COMMIT")
				var got []string
				for _, line := range strings.Split(text, "\n") {
					if strings.HasPrefix(line, "-A ") && !strings.HasPrefix(line, "-A KUBE-") {
						got = append(got, strings.TrimRight(line, " "))
					}
				}
				slices.Sort(want) // the order of built-in chains depends on the tool
				slices.Sort(got)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", table.Name, diff)
				}
			}
		})
	}
}

func TestCommentsOfOddNames(t *testing.T) {
	p := irtest.Program(ir.ModeIPTables)
	for i := range p.Services {
		s := &p.Services[i]
		s.Name.Name = "a\"b\\c\nCOMMIT\n" + strings.Repeat("ä", 200)
		for j := range s.Frontends {
			s.Frontends[j].Port.Service = s.Name
		}
	}
	dir, _ := write(t, ir.NewPrograms(p))
	inNamespace(t, "nft", dir, "iptables-restore --test iptables.rules")
	inNamespace(t, "legacy", dir, "iptables-restore --test iptables.rules")
}
