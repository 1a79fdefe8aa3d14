package config

import (
	"bytes"
	"encoding/json"

	"sigs.k8s.io/yaml"
)

// Setting is a value in force and where it comes from.
type Setting struct {
	Path   string `json:"path"`
	Value  string `json:"value"`  // as JSON
	Source string `json:"source"` // "config.yaml:12", "--proxy-mode", "default from bindAddress"
}

// Show returns all values in force, in the order of the reference manual.
// Values that have no effect any more are left out unless they are set.
func Show(r *Resolved) []Setting {
	dead := map[string]bool{}
	for _, f := range Fields() {
		dead[f.Path] = f.Until != ""
	}
	var out []Setting
	for _, l := range leaves(r.Config) {
		if dead[l.path] && l.value.IsZero() {
			continue
		}
		out = append(out, Setting{l.path, text(l.value), r.Source(l.path).String()})
	}
	return out
}

// Difference is a setting with other values in force on two sides.
type Difference struct {
	Path          string  `json:"path"`
	Before, After Setting `json:"-"`
}

// Differences returns all settings that two configurations do not have alike, in the
// order of the reference manual.
func Differences(a, b *Resolved) (out []Difference) {
	before, after := leaves(a.Config), leaves(b.Config)
	for i, l := range before {
		was, is := text(l.value), text(after[i].value)
		if was != is {
			out = append(out, Difference{l.path, Setting{l.path, was, a.Source(l.path).String()}, Setting{l.path, is, b.Source(l.path).String()}})
		}
	}
	return out
}

// WriteConfig writes a configuration as YAML, with every field that is not
// marked otherwise (CFG-6), keys in alphabetical order. Parse returns c again.
func WriteConfig(c *Config) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(c); err != nil {
		return nil, err
	}
	return yaml.JSONToYAML(b.Bytes())
}
