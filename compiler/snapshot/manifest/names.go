package manifest

import (
	"path"
	"slices"
	"strings"
)

// NamesObjects reports whether a file of this name in a directory is read: it is
// a YAML or JSON file and not hidden.
func NamesObjects(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(name)) && !strings.HasPrefix(name, ".")
}
