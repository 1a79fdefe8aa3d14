package manifest

import (
	"path/filepath"
	"slices"
	"strings"
)

// NamesObjects reports whether a file of this name in a directory is read: it is
// a YAML or JSON file and not hidden, or one of kustomize.
func NamesObjects(name string) bool {
	return slices.Contains(objectNames, filepath.Ext(name)) && !strings.HasPrefix(name, ".") || IsKustomization(name)
}

// IsKustomization reports whether kustomize reads a file of this name.
func IsKustomization(name string) bool {
	return slices.Contains([]string{"kustomization.yaml", "kustomization.yml", "Kustomization"}, filepath.Base(name))
}

var objectNames = []string{".yaml", ".yml", ".json"}
