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

// configMapKeys are the keys of the configuration in a ConfigMap: kubeadm's and
// EKS's.
var configMapKeys = [...]string{"config.conf", "config"}

// Parse parses a configuration without setting defaults. The input is YAML or
// JSON: a KubeProxyConfiguration, or a ConfigMap with one in data["config.conf"]
// or data["config"]. Parse uses the first one in the file, which may contain
// other documents and Lists, such as kubeadm's configuration or kubectl's output.
// It reports all errors with their lines. Unknown and duplicate keys are
// warnings, or errors if strict is set. The Config is nil if the file contains
// none.
func Parse(file string, data []byte, strict bool) (*Config, diag.List) {
	c, _, l := parse(file, data, strict)
	l.Sort()
	return c, l
}

func parse(file string, data []byte, strict bool) (*Config, sources, diag.List) {
	c, from, l := parseAny(file, data, strict)
	if line, column := diag.TemplateOf(data); column > 0 && l.HasErrors() {
		l = diag.List{{Severity: diag.Error, Code: diag.NotYAML, File: file, Line: line, Column: column, Msg: diag.Template}}
	}
	return c, from, l
}

func parseAny(file string, data []byte, strict bool) (*Config, sources, diag.List) {
	d := &decoder{file: file, strict: strict, sources: sources{}}
	d.place = placeIn(data)
	root := d.root(data)
	if root == nil {
		return nil, nil, d.diags
	}
	if !d.header(root) {
		return nil, nil, d.diags
	}
	c := new(Config)
	pos := d.place(root)
	d.sources[""] = Source{File: file, Line: pos.line, column: pos.column}
	d.section(root, reflect.ValueOf(c).Elem(), "")
	return c, d.sources, d.diags
}

// root returns the mapping of the configuration in a file: of the first document
// with one, or else of the first non-empty document.
func (d *decoder) root(data []byte) *yaml.Node {
	if !d.inner {
		d.data = data
	}
	objects, broken := objectsOf(data)
	with := slices.IndexFunc(objects, d.hasConfig)
	switch {
	case with >= 0:
		for i, o := range objects {
			if i != with && (d.hasConfig(o) || o.Kind != yaml.MappingNode || lookup(o, "kind") == nil) {
				d.report(diag.Warning, diag.ConfigSecond, o, "", fmt.Sprintf("is ignored: the configuration is the one at line %d", d.place(objects[with]).line), "")
			}
		}
		if broken != nil {
			d.syntax(data, diag.Warning, broken, "the text after the configuration is ")
		}
		objects = objects[with:]
	case broken != nil:
		d.syntax(data, diag.Error, broken, "")
		return nil
	case len(objects) == 0:
		d.report(diag.Error, diag.ConfigMissing, &yaml.Node{Line: 1, Column: 1}, "", "no configuration found, the file is empty", "")
		return nil
	}
	root := objects[0]
	switch {
	case root.Kind != yaml.MappingNode:
		d.wrong(root, "", "a mapping with apiVersion and kind", "")
		return nil
	case !d.inner && isConfigMap(root):
		return d.configMap(root)
	}
	return root
}

// hasConfig reports whether an object is a configuration, or a ConfigMap that contains one.
func (d *decoder) hasConfig(o *yaml.Node) bool {
	return hasKind(o, Kind) || !d.inner && isConfigMap(o) && len(configTexts(o)) > 0
}

// objectsOf returns the non-empty documents, with Lists and arrays replaced by
// their items, and the YAML error after which parsing stopped.
func objectsOf(data []byte) (objects []*yaml.Node, err error) {
	docs := yaml.NewDecoder(bytes.NewReader(asYAML(data)))
	for {
		var doc yaml.Node
		err := docs.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return objects, err
		}
		root := target(doc.Content[0])
		if items := listItems(root); items != nil {
			for _, item := range items {
				objects = append(objects, target(item))
			}
		} else if !isNull(root) {
			objects = append(objects, root)
		}
	}
}

// listItems returns the items of a List, or of a bare array of objects as written
// by jq. It returns nil for other nodes.
func listItems(root *yaml.Node) []*yaml.Node {
	if root.Kind == yaml.SequenceNode && slices.ContainsFunc(root.Content, func(n *yaml.Node) bool { return target(n).Kind == yaml.MappingNode }) {
		return root.Content
	}
	if root.Kind != yaml.MappingNode {
		return nil
	}
	kind, items := lookup(root, "kind"), lookup(root, "items")
	if kind == nil || !strings.HasSuffix(kind.Value, "List") || items == nil || items.Kind != yaml.SequenceNode {
		return nil
	}
	return items.Content
}

func hasKind(n *yaml.Node, want string) bool {
	if n.Kind != yaml.MappingNode {
		return false
	}
	kind := lookup(n, "kind")
	return kind != nil && kind.Value == want
}

// syntax reports an error of the YAML parser. The error begins with "yaml: line
// 5: ".
func (d *decoder) syntax(text []byte, sev diag.Severity, err error, what string) {
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	at := &yaml.Node{Line: 1}
	if rest, ok := strings.CutPrefix(msg, "line "); ok {
		number, problem, _ := strings.Cut(rest, ": ")
		if line, err := strconv.Atoi(number); err == nil {
			at.Line, msg = line, problem
		}
	}
	if line, column, ok := diag.TabOf(text, at.Line, msg); ok {
		at.Line, at.Column, msg = line, column, diag.Tab
	}
	d.report(sev, diag.NotYAML, at, "", what+"not YAML or JSON: "+msg, "")
}

func isConfigMap(n *yaml.Node) bool { return hasKind(n, "ConfigMap") }

// configText is a text in a ConfigMap that contains a configuration.
type configText struct {
	key  string
	text *yaml.Node
}

// configTexts returns the texts of a ConfigMap that contain a configuration.
func configTexts(root *yaml.Node) (found []configText) {
	data := lookup(root, "data")
	if data == nil || data.Kind != yaml.MappingNode {
		return nil
	}
	for _, key := range configMapKeys {
		text := lookup(data, key)
		if text == nil {
			continue
		}
		objects, _ := objectsOf([]byte(text.Value))
		if slices.ContainsFunc(objects, func(o *yaml.Node) bool { return hasKind(o, Kind) }) {
			found = append(found, configText{key, text})
		}
	}
	return found
}

// configMap returns the configuration inside a ConfigMap, and maps the positions
// of diagnostics to the ConfigMap's file.
func (d *decoder) configMap(root *yaml.Node) *yaml.Node {
	path := func(key string) string { return "data[" + strconv.Quote(key) + "]" }
	usual := path(configMapKeys[0])
	data := lookup(root, "data")
	if data == nil || data.Kind != yaml.MappingNode {
		d.report(diag.Error, diag.ConfigMissing, root, usual, "missing, a ConfigMap must contain the configuration there", "")
		return nil
	}
	found := configTexts(root)
	for _, key := range configMapKeys { // decode an invalid text to report its error
		if text := lookup(data, key); text != nil {
			found = append(found, configText{key, text})
		}
	}
	if len(found) == 0 {
		d.report(diag.Error, diag.ConfigMissing, data, usual, "missing, a ConfigMap must contain the configuration there, or under "+strconv.Quote(configMapKeys[1])+"; it has "+keyList(data), "")
		return nil
	}
	text := found[0].text
	if s, ok := stringOf(text); !ok || s == "" {
		d.wrong(text, path(found[0].key), "a configuration as a string", "")
		return nil
	}
	d.inner = true
	at := d.place(text)
	if text.Style&yaml.LiteralStyle == 0 { // only a literal block preserves lines
		d.place = func(*yaml.Node) position { return at }
		return d.root([]byte(text.Value))
	}
	// The text begins below the line of its "|", and all lines have the same
	// indentation.
	inner, indent := placeIn([]byte(text.Value)), d.indentation(text)
	d.place = func(n *yaml.Node) position {
		pos := inner(n)
		return position{at.line + pos.line, indent + pos.column}
	}
	return d.root([]byte(text.Value))
}

// indentation returns the indentation of a literal block, which its first
// non-blank line determines.
func (d *decoder) indentation(block *yaml.Node) int {
	skip := block.Line
	first := strings.TrimLeft(block.Value, "\n")
	first, _, _ = strings.Cut(first, "\n")
	for line := range bytes.Lines(d.data) {
		if skip--; skip >= 0 {
			continue
		}
		if text := string(bytes.TrimRight(line, "\r\n")); strings.TrimSpace(text) != "" {
			return max(0, len(text)-len(first))
		}
	}
	return 0
}

// header checks apiVersion and kind (CFG-2), and reports whether the document may
// be a configuration.
func (d *decoder) header(root *yaml.Node) bool {
	ok := true
	if kind := lookup(root, "kind"); kind != nil {
		version := ""
		if n := lookup(root, "apiVersion"); n != nil {
			version = n.Value
		}
		if msg := diag.WrongFile("-c", version, kind.Value); msg != "" {
			d.report(diag.Error, diag.ConfigMissing, root, "", msg, "")
			return false
		}
	}
	for _, want := range []struct{ key, value string }{{"apiVersion", APIVersion}, {"kind", Kind}} {
		key, n := entry(root, func(key string) bool { return key == want.key })
		if n == nil { // kube-proxy ignores case only in the header
			key, n = entry(root, func(key string) bool { return strings.EqualFold(key, want.key) })
		}
		switch {
		case n == nil || isNull(n):
			d.report(diag.Error, diag.ConfigMissing, root, want.key, fmt.Sprintf("missing, must be %q", want.value), "")
		case n.Kind == yaml.ScalarNode && n.Value != want.value:
			d.report(diag.Error, diag.ConfigMissing, key, want.key, fmt.Sprintf("must be %q, got %q", want.value, n.Value), "")
			ok = false
		}
	}
	return ok
}

// lookup returns the value of a key; of duplicates the last one.
func lookup(mapping *yaml.Node, key string) *yaml.Node {
	_, value := entry(mapping, func(k string) bool { return k == key })
	return value
}

// entry returns the last key for which is returns true, and its value.
func entry(mapping *yaml.Node, is func(key string) bool) (key, value *yaml.Node) {
	for i := len(mapping.Content) - 2; i >= 0; i -= 2 {
		if is(target(mapping.Content[i]).Value) {
			return mapping.Content[i], target(mapping.Content[i+1])
		}
	}
	return nil, nil
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
