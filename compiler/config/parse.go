package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/proxyc/proxyc/compiler/diag"
)

// configMapKey is where kubeadm keeps the configuration in its ConfigMap.
const configMapKey = "config.conf"

// Parse reads a configuration as it stands, without defaults: YAML or JSON, or
// a ConfigMap that has one in data["config.conf"]. It reports all that is wrong
// at once, each with its line. Unknown and duplicate keys are warnings; errors
// if strict. The Config is nil if there is nothing to work on.
func Parse(file string, data []byte, strict bool) (*Config, diag.List) {
	c, _, l := parse(file, data, strict)
	l.Sort()
	return c, l
}

func parse(file string, data []byte, strict bool) (*Config, sources, diag.List) {
	d := &decoder{file: file, strict: strict, sources: sources{}, line: func(n *yaml.Node) int { return n.Line }}
	root := d.document(data)
	if root == nil {
		return nil, nil, d.diags
	}
	if isConfigMap(root) {
		if root = d.configMap(root); root == nil {
			return nil, nil, d.diags
		}
	}
	if !d.header(root) {
		return nil, nil, d.diags
	}
	c := new(Config)
	d.section(root, reflect.ValueOf(c).Elem(), "")
	return c, d.sources, d.diags
}

// document gives the mapping of the first document that is not empty.
func (d *decoder) document(data []byte) *yaml.Node {
	docs := yaml.NewDecoder(bytes.NewReader(asYAML(data)))
	var root *yaml.Node
	for {
		var doc yaml.Node
		err := docs.Decode(&doc)
		if errors.Is(err, io.EOF) {
			d.report(diag.Error, &yaml.Node{Line: 1}, "", "no configuration found, the file is empty", "")
			return nil
		}
		if err != nil {
			d.syntax(err)
			return nil
		}
		if root = target(doc.Content[0]); !isNull(root) {
			break
		}
	}
	if root.Kind != yaml.MappingNode {
		d.wrong(root, "", "a mapping with apiVersion and kind", "")
		return nil
	}
	var next yaml.Node
	if docs.Decode(&next) == nil && !isNull(next.Content[0]) {
		d.report(diag.Warning, &next, "", "only the first document is read", "")
	}
	return root
}

// syntax reports an error of the YAML parser, which begins "yaml: line 5: ".
func (d *decoder) syntax(err error) {
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	at := &yaml.Node{}
	if rest, ok := strings.CutPrefix(msg, "line "); ok {
		number, text, _ := strings.Cut(rest, ": ")
		if line, err := strconv.Atoi(number); err == nil {
			at.Line, msg = line, text
		}
	}
	d.report(diag.Error, at, "", "not YAML or JSON: "+msg, "")
}

func isConfigMap(root *yaml.Node) bool {
	kind := lookup(root, "kind")
	return kind != nil && kind.Value == "ConfigMap"
}

// configMap gives the configuration inside a ConfigMap, and makes the lines of
// diagnostics those of the ConfigMap's file.
func (d *decoder) configMap(root *yaml.Node) *yaml.Node {
	path := "data[" + strconv.Quote(configMapKey) + "]"
	data := lookup(root, "data")
	if data == nil || data.Kind != yaml.MappingNode {
		d.report(diag.Error, root, path, "missing, a ConfigMap must have the configuration there", "")
		return nil
	}
	text := lookup(data, configMapKey)
	if text == nil {
		d.report(diag.Error, data, path, "missing, a ConfigMap must have the configuration there; it has "+keyList(data), "")
		return nil
	}
	if s, ok := stringOf(text); !ok || s == "" {
		d.wrong(text, path, "a configuration as a string", "")
		return nil
	}
	// Only a literal block keeps its lines; it begins below the line of its "|".
	if text.Style&yaml.LiteralStyle != 0 {
		d.line = func(n *yaml.Node) int { return text.Line + n.Line }
	} else {
		d.line = func(*yaml.Node) int { return text.Line }
	}
	return d.document([]byte(text.Value))
}

// header checks apiVersion and kind (CFG-2), and tells whether the rest can be
// a configuration.
func (d *decoder) header(root *yaml.Node) bool {
	ok := true
	for _, want := range []struct{ key, value string }{{"apiVersion", APIVersion}, {"kind", Kind}} {
		n := lookup(root, want.key)
		switch {
		case n == nil || isNull(n):
			d.report(diag.Error, root, want.key, fmt.Sprintf("missing, must be %q", want.value), "")
		case n.Kind == yaml.ScalarNode && n.Value != want.value:
			d.report(diag.Error, n, want.key, fmt.Sprintf("must be %q, got %q", want.value, n.Value), "")
			ok = false
		}
	}
	return ok
}

// lookup gives the value of a key; the last one, where it stands twice.
func lookup(mapping *yaml.Node, key string) *yaml.Node {
	for i := len(mapping.Content) - 2; i >= 0; i -= 2 {
		if target(mapping.Content[i]).Value == key {
			return target(mapping.Content[i+1])
		}
	}
	return nil
}

func keyList(mapping *yaml.Node) string {
	var keys []string
	for i := 0; i < len(mapping.Content); i += 2 {
		keys = append(keys, target(mapping.Content[i]).Value)
	}
	if len(keys) == 0 {
		return "no keys"
	}
	slices.Sort(keys)
	return strings.Join(keys, ", ")
}
