package manifest

import (
	"path/filepath"
	"slices"
	"strings"
)

// NamesObjects reports whether a file of this name in a directory is read: it is
// a YAML or JSON file and not hidden.
func NamesObjects(name string) bool {
	return slices.Contains(objectNames, filepath.Ext(name)) && !strings.HasPrefix(name, ".")
}

var objectNames = []string{".yaml", ".yml", ".json"}
