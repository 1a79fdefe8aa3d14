package apply

import (
	"fmt"
	"slices"
	"strings"
)

// Fastpath says which connections to Services leave the kernel's usual way when they
// have lasted, by a flowtable (KEP-4963), in mode nftables. The zero value is none.
type Fastpath struct {
	// Interfaces are names, or the beginning of names with a star.
	Interfaces []string
	// Packets is how many a connection has in both directions before; 0: none.
	Packets uint32
}

// On reports whether there is to be one.
func (f *Fastpath) On() bool { return len(f.Interfaces) > 0 }

// longestInterface is how long a name may be (IFNAMSIZ without its end).
const longestInterface = 15

// Validate returns what is wrong with the names.
func (f *Fastpath) Validate() error {
	for _, pattern := range f.Interfaces {
		name, _ := strings.CutSuffix(pattern, "*")
		switch {
		case pattern == "":
			return fmt.Errorf("an interface has no name")
		case pattern == "lo":
			return fmt.Errorf("%q: packets from the loopback interface are not forwarded", pattern)
		case len(name) > longestInterface:
			return fmt.Errorf("%q: an interface's name has at most %d characters", pattern, longestInterface)
		case strings.ContainsAny(name, "*?[/: \t\n"):
			return fmt.Errorf("%q: must be an interface name, or a prefix followed by one star", pattern)
		}
	}
	return nil
}

// Match reports whether an interface is among them. The loopback interface never is: what
// comes in there is not forwarded.
func (f *Fastpath) Match(name string) bool {
	return name != "lo" && slices.ContainsFunc(f.Interfaces, func(pattern string) bool {
		start, star := strings.CutSuffix(pattern, "*")
		return pattern == name || star && strings.HasPrefix(name, start)
	})
}
