package docs

import (
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const dependenciesPage = "dependencies.md"

// dependencyRow is a row of the page's table: modules, users, reason.
var dependencyRow = regexp.MustCompile(`(?m)^\| ([^|]*[./][^|]*) \| ([^|]*) \| ([^|]+) \|$`)

// TestDependencies holds the table against go.mod and the imports: each direct
// dependency has a row, and who imports it stands there. -update writes that column.
func TestDependencies(t *testing.T) {
	users := importers(t)
	page := readFile(t, dependenciesPage)
	seen := map[string]bool{}
	is := dependencyRow.ReplaceAllStringFunc(page, func(row string) string {
		m := dependencyRow.FindStringSubmatch(row)
		by := map[string]bool{}
		for module := range strings.SplitSeq(m[1], ", ") {
			if users[module] == nil {
				t.Errorf("%s: %s: not a direct dependency in go.mod", dependenciesPage, module)
			}
			if seen[module] {
				t.Errorf("%s: %s: has two rows", dependenciesPage, module)
			}
			seen[module] = true
			maps.Copy(by, users[module])
		}
		return "| " + m[1] + " | " + usedBy(by) + " | " + m[3] + " |"
	})
	for module := range users {
		if !seen[module] {
			t.Errorf("%s: %s: has no row", dependenciesPage, module)
		}
	}
	if *update {
		if err := os.WriteFile(dependenciesPage, []byte(is), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(page, is); diff != "" {
		t.Errorf("%s: make golden writes the column anew (-page +imports):\n%s", dependenciesPage, diff)
	}
}

// usedBy lists packages, or "tests" if only tests import it.
func usedBy(packages map[string]bool) string {
	list := slices.Sorted(maps.Keys(packages))
	if len(list) > 1 {
		list = slices.DeleteFunc(list, func(p string) bool { return p == "tests" })
	}
	return strings.Join(list, ", ")
}

// importers returns, for each direct dependency, the packages that import it, on
// Linux or Windows; "tests" stands for all tests.
func importers(t *testing.T) map[string]map[string]bool {
	t.Helper()
	users := map[string]map[string]bool{}
	for module := range strings.FieldsSeq(goList(t, "linux", "-m", "-f", "{{if not (or .Main .Indirect)}}{{.Path}}{{end}}", "all")) {
		users[module] = map[string]bool{}
	}
	for _, system := range []string{"linux", "windows"} {
		const format = `{{$p := .ImportPath}}{{range .Imports}}{{$p}} {{.}}
{{end}}{{range .TestImports}}tests {{.}}
{{end}}{{range .XTestImports}}tests {{.}}
{{end}}`
		for line := range strings.Lines(goList(t, system, "-f", format, "./...")) {
			by, imported, _ := strings.Cut(strings.TrimSpace(line), " ")
			by = strings.TrimPrefix(by, "github.com/proxyc/proxyc/")
			for module := range users {
				if imported == module || strings.HasPrefix(imported, module+"/") {
					users[module][by] = true
				}
			}
		}
	}
	return users
}

func goList(t *testing.T, system string, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOOS="+system)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	return string(out)
}
