package manifest

import (
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// NamesObjects reports whether a file of this name in a directory is read: it is
// a YAML or JSON file and not hidden.
func NamesObjects(name string) bool {
	return slices.Contains(objectNames, filepath.Ext(name)) && !strings.HasPrefix(name, ".")
}

var objectNames = []string{".yaml", ".yml", ".json"}

// Transforms reports whether a file is a kustomization that does more than list other files: what is
// applied is then the output of kustomize.
func Transforms(name string, data []byte) bool {
	base := filepath.Base(name)
	var in struct {
		APIVersion any            `yaml:"apiVersion"`
		Kind       any            `yaml:"kind"`
		Metadata   any            `yaml:"metadata"`
		Resources  []string       `yaml:"resources"`
		Rest       map[string]any `yaml:",inline"`
	}
	if base != "kustomization.yaml" && base != "kustomization.yml" || yaml.Unmarshal(data, &in) != nil {
		return false
	}
	return len(in.Rest) > 0 || slices.ContainsFunc(in.Resources, func(file string) bool {
		return strings.HasPrefix(file, "..") || !slices.Contains(objectNames, filepath.Ext(file))
	})
}
