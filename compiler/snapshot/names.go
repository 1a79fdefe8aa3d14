package snapshot

import (
	"path"
	"slices"
	"strings"
)

// NamesObjects reports whether a file of this name is read where a directory is
// given: one in YAML or JSON that is not hidden.
func NamesObjects(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(name)) && !strings.HasPrefix(name, ".")
}
