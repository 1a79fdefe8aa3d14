// Releases writes compiler/config/gates.txt, the feature gates of kube-proxy by release, from the
// source of Kubernetes' modules:
//
//	cd e2e && go run ./releases
//
// It reads the source, since the newest release may need a newer version of Go.
package main

import (
	"fmt"
	"log"
	"maps"
	"os"
	"slices"
	"strings"
)

// table is the written file.
const table = "../compiler/config/gates.txt"

// releases are the versions of k8s.io/kubernetes that are read, in order.
var releases = []string{"1.31.14", "1.32.13", "1.33.13", "1.34.4", "1.35.4", "1.36.3", "1.37.2", "1.38.0-beta.0"}

func main() {
	log.SetFlags(0)
	text, err := write()
	if err == nil {
		err = os.WriteFile(table, []byte(text), 0o644)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// minor returns the release of a version: 1.31 for 1.31.14.
func minor(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return parts[0] + "." + parts[1]
}

// write returns the table of all releases.
func write() (string, error) {
	histories := map[string][]string{} // by gate: each state that differs from the one before
	for i, version := range releases {
		states, err := gatesOf(version)
		if err != nil {
			return "", fmt.Errorf("%s: %w", version, err)
		}
		for name := range histories {
			if _, ok := states[name]; !ok {
				states[name] = "-"
			}
		}
		for name, state := range states {
			history := histories[name]
			if len(history) > 0 {
				if _, last, _ := strings.Cut(history[len(history)-1], " "); last == state {
					continue
				}
			}
			histories[name] = append(history, minor(releases[i])+" "+state)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Feature gates of kube-proxy %s, written by: cd e2e && go run ./releases\n", strings.Join(releases, ", "))
	b.WriteString(`# Name; then each release with a change, from the first one that was read on: the stage and the default;
# "locked" if only the default is allowed; the gates that it requires. "-": removed.
`)
	for _, name := range slices.Sorted(maps.Keys(histories)) {
		fmt.Fprintf(&b, "%s %s\n", name, strings.Join(histories[name], "; "))
	}
	return b.String(), nil
}
