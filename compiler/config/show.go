package config

import (
	"bytes"
	"encoding/json"

	"sigs.k8s.io/yaml"
)

// Setting is an effective value and its source.
type Setting struct {
	Path   string `json:"path"`
	Value  string `json:"value"`  // as JSON
	Source string `json:"source"` // "config.yaml:12", "--proxy-mode", "default from bindAddress"
}

// Show returns all effective values, in the order of the reference manual. It
// omits values that no longer have an effect, unless they are set.
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

// Difference is a setting whose effective values differ.
type Difference struct {
	Path          string  `json:"path"`
	Before, After Setting `json:"-"`
}

// Differences returns all settings that differ between two configurations, in the
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

// WriteConfig encodes a configuration as YAML, with keys in alphabetical order.
// Only fields tagged omitempty or omitzero are omitted if empty (CFG-6). Parse
// returns c again.
func WriteConfig(c *Config) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(c); err != nil {
		return nil, err
	}
	return yaml.JSONToYAML(b.Bytes())
}
