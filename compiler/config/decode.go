package config

import (
	"encoding/base64"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyc/proxyc/compiler/diag"
)

// decoder decodes YAML nodes into a Config. It never stops at an error: it
// reports an invalid value and keeps the field unchanged.
type decoder struct {
	file    string
	data    []byte // of the file
	place   func(*yaml.Node) position
	inner   bool // the configuration is a text in a ConfigMap
	strict  bool // unknown and duplicate keys are errors
	sources sources
	diags   diag.List
}

func (d *decoder) report(sev diag.Severity, code diag.Code, n *yaml.Node, path, msg, hint string) {
	at := d.place(n)
	d.diags.Add(diag.Diagnostic{Severity: sev, Code: code, File: d.file, Line: at.line, Column: at.column, Path: path, Msg: msg, Hint: hint})
}

// wrong reports a value of the wrong type.
func (d *decoder) wrong(n *yaml.Node, path, want, hint string) {
	sev := diag.Error
	if isRemoved(path) {
		sev = diag.Warning
	}
	d.report(sev, diag.ConfigType, n, path, "must be "+want+", got "+describe(n), hint)
	if src, ok := d.sources[path]; ok { // the place of a field is that of its key
		found := &d.diags[len(d.diags)-1]
		found.Line, found.Column = src.Line, src.column
	}
}

// sloppy reports input that kube-proxy's strict decoding rejects and its lenient
// decoding accepts, such as unknown or duplicate keys (CFG-3).
func (d *decoder) sloppy(code diag.Code, n *yaml.Node, path, msg, hint string) {
	sev := diag.Warning
	if d.strict {
		sev = diag.Error
	}
	d.report(sev, code, n, path, msg, hint)
}

// value decodes n into v. at is the key or list item, for the position. null
// leaves v unchanged, like a missing key.
func (d *decoder) value(at, n *yaml.Node, v reflect.Value, path string) {
	n = target(n)
	if isNull(n) && v.Type() != reflect.TypeFor[metav1.Duration]() { // kube-proxy decodes a null duration as an empty string
		return
	}
	pos := d.place(at)
	d.sources[path] = Source{File: d.file, Line: pos.line, column: pos.column}
	switch {
	case v.Kind() == reflect.Pointer:
		elem := reflect.New(v.Type().Elem())
		before := len(d.diags)
		d.value(at, n, elem.Elem(), path)
		if len(d.diags) == before {
			v.Set(elem)
		}
	case isDuration(v.Type()):
		d.duration(n, v, path)
	case v.Type() == reflect.TypeFor[Quantity]():
		d.quantity(n, v, path)
	default:
		d.plain(n, v, path)
	}
}

func (d *decoder) plain(n *yaml.Node, v reflect.Value, path string) {
	switch v.Kind() {
	case reflect.Struct:
		d.section(n, v, path)
	case reflect.Map:
		d.dict(n, v, path)
	case reflect.Slice:
		d.list(n, v, path)
	case reflect.String:
		if s, ok := stringOf(n); ok {
			v.SetString(s)
		} else if isPlain(n) { // 1.36 or yes
			d.wrong(n, path, "a string", "put it in quotes")
		} else {
			d.wrong(n, path, "a string", "")
		}
	case reflect.Bool:
		if b, ok := boolOf(n); ok {
			v.SetBool(b)
		} else {
			d.wrong(n, path, "true or false", "")
		}
	case reflect.Int32:
		d.integer(n, path, math.MinInt32, math.MaxInt32, v.SetInt)
	case reflect.Uint32:
		d.integer(n, path, 0, math.MaxUint32, func(i int64) { v.SetUint(uint64(i)) })
	case reflect.Float32:
		if f, ok := floatOf(n); ok && math.Abs(f) <= math.MaxFloat32 {
			v.SetFloat(f)
		} else {
			d.wrong(n, path, "a number", "")
		}
	}
}

// section decodes a mapping whose keys are the fields of a struct. Names are
// case-sensitive (CFG-4).
func (d *decoder) section(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.wrong(n, path, "a mapping", "")
		return
	}
	fields := map[string]reflect.Value{}
	var known []string
	for i := range v.NumField() {
		name := key(v.Type().Field(i))
		fields[name], known = v.Field(i), append(known, name)
	}
	for _, p := range d.pairs(n, path) {
		field, ok := fields[p.key.Value]
		if !ok || isRemoved(join(path, p.key.Value)) {
			d.finite(p.value, join(path, p.key.Value), 0)
		}
		if !ok {
			d.sloppy(diag.ConfigKey, p.key, join(path, p.key.Value), "unknown key, it has no effect", suggest(path, p.key.Value, known))
			continue
		}
		d.value(p.key, p.value, field, join(path, p.key.Value))
	}
}

// suggest returns a hint for an unknown key: the nearest name in its section, or
// else the sections that contain this key.
func suggest(section, name string, known []string) string {
	if hint := diag.DidYouMean(name, known); hint != "" {
		return hint
	}
	var elsewhere []string
	for _, l := range leaves(new(Config)) {
		if i := strings.LastIndexByte(l.path, '.'); parent(l.path) != section && strings.EqualFold(l.path[i+1:], name) {
			elsewhere = append(elsewhere, l.path)
		}
	}
	if len(elsewhere) > 0 {
		return "did you mean " + strings.Join(elsewhere, " or ") + "?"
	}
	return ""
}

// finite reports numbers that JSON cannot represent, in values that are not
// decoded: kube-proxy converts the whole file to JSON first. The depth is
// limited, because an anchor may contain itself.
func (d *decoder) finite(n *yaml.Node, path string, depth int) {
	if n = target(n); depth > 100 {
		return
	}
	var f float64
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!float" && n.Decode(&f) == nil && (math.IsNaN(f) || math.IsInf(f, 0)) {
		d.report(diag.Error, diag.ConfigType, n, path, "must be a number that JSON supports, got "+n.Value, "")
	}
	for _, child := range n.Content {
		d.finite(child, path, depth+1)
	}
}

// dict decodes a mapping with arbitrary keys.
func (d *decoder) dict(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.wrong(n, path, "a mapping", "")
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	for _, p := range d.pairs(n, path) {
		elem := reflect.New(v.Type().Elem()).Elem()
		d.value(p.key, p.value, elem, join(path, p.key.Value))
		v.SetMapIndex(reflect.ValueOf(p.key.Value), elem)
	}
}

func (d *decoder) list(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.SequenceNode {
		d.wrong(n, path, "a list", "")
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		d.value(item, item, v.Index(i), fmt.Sprintf("%s[%d]", path, i))
	}
}

func (d *decoder) integer(n *yaml.Node, path string, lo, hi int64, set func(int64)) {
	f, ok := floatOf(n)
	if !ok || f != math.Trunc(f) || f < float64(lo) || f > float64(hi) || lo == 0 && f == 0 && math.Signbit(f) {
		d.wrong(n, path, fmt.Sprintf("an integer from %d to %d", lo, hi), "")
		return
	}
	set(int64(f))
}

// duration decodes metav1.Duration and FlushFrequency.
func (d *decoder) duration(n *yaml.Node, v reflect.Value, path string) {
	const want = `a duration such as "30s" or "1h30m"`
	isFlush := v.Type() == reflect.TypeFor[FlushFrequency]()
	var dur time.Duration
	s, ok := stringOf(n)
	if ok {
		var err error
		dur, err = time.ParseDuration(s)
		ok = err == nil
	} else if isFlush {
		var f float64
		f, ok = floatOf(n)
		ok = ok && f == math.Trunc(f) && math.Abs(f) < math.MaxInt64
		dur = time.Duration(f)
	}
	if !ok {
		d.wrong(n, path, want, "")
		return
	}
	if isFlush {
		v = v.Field(0)
	}
	v.Field(0).SetInt(int64(dur))
}

// quantity accepts a string or a number. Validate checks its value.
func (d *decoder) quantity(n *yaml.Node, v reflect.Value, path string) {
	s, ok := stringOf(n)
	if _, number := floatOf(n); !ok && !number || ok && s == "" {
		d.wrong(n, path, `a size such as "512" or "4Ki"`, "")
		return
	} else if !ok {
		s = n.Value
	}
	v.SetString(s)
}

type pair struct{ key, value *yaml.Node }

// pairs returns the entries of a mapping without duplicate keys. The last
// duplicate wins (CFG-3). Entries of a merge key "<<" have the lowest precedence.
func (d *decoder) pairs(n *yaml.Node, path string) []pair {
	var own, merged []pair
	for i := 0; i+1 < len(n.Content); i += 2 {
		p := pair{target(n.Content[i]), n.Content[i+1]}
		switch {
		case p.key.Kind != yaml.ScalarNode || isNull(p.key):
			d.report(diag.Error, diag.ConfigType, p.key, path, "must be a mapping with keys that are strings, got "+describe(p.key), "")
		case p.key.ShortTag() == "!!merge":
			merged = append(merged, mergedPairs(p.value, 0)...)
		default:
			own = d.put(own, p, path)
		}
	}
	for _, p := range merged {
		if !hasKey(own, p.key.Value) {
			own = append(own, p)
		}
	}
	return own
}

func (d *decoder) put(pairs []pair, p pair, path string) []pair {
	for i, old := range pairs {
		if old.key.Value == p.key.Value {
			msg := fmt.Sprintf("duplicate key, first at line %d; the last value is used", d.place(old.key).line)
			d.sloppy(diag.ConfigKeyDuplicate, p.key, join(path, p.key.Value), msg, "")
			pairs[i] = p
			return pairs
		}
	}
	return append(pairs, p)
}

// mergedPairs returns the entries of "<<: *anchor" or "<<: [*a, *b]"; the first
// one wins. The depth is limited, because an anchor may contain itself.
func mergedPairs(n *yaml.Node, depth int) []pair {
	n = target(n)
	if depth > 8 {
		return nil
	}
	var out []pair
	switch n.Kind {
	case yaml.SequenceNode:
		for _, item := range n.Content {
			if target(item).Kind == yaml.MappingNode {
				out = append(out, mergedPairs(item, depth+1)...)
			}
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if k := target(n.Content[i]); k.Kind == yaml.ScalarNode && !hasKey(out, k.Value) {
				out = append(out, pair{k, n.Content[i+1]})
			}
		}
	}
	return out
}

func hasKey(pairs []pair, key string) bool {
	return slices.ContainsFunc(pairs, func(p pair) bool { return p.key.Value == key })
}

// target resolves an alias.
func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// isPlain reports whether a scalar is unquoted.
func isPlain(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0
}

func stringOf(n *yaml.Node) (string, bool) {
	if n.Kind != yaml.ScalarNode {
		return "", false
	}
	if _, isBool := boolOf(n); isBool {
		return "", false
	}
	switch n.ShortTag() {
	case "!!str", "!!timestamp":
		return n.Value, true
	case "!!binary":
		text, err := base64.StdEncoding.DecodeString(n.Value)
		return string(text), err == nil
	}
	return "", false
}

// boolOf parses a boolean, including those of YAML 1.1, as kube-proxy's parser
// does.
func boolOf(n *yaml.Node) (value, ok bool) {
	if !isPlain(n) && (n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool") {
		return false, false
	}
	switch n.Value {
	case "true", "True", "TRUE", "y", "Y", "yes", "Yes", "YES", "on", "On", "ON":
		return true, true
	case "false", "False", "FALSE", "n", "N", "no", "No", "NO", "off", "Off", "OFF":
		return false, true
	}
	return false, false
}

func floatOf(n *yaml.Node) (f float64, ok bool) {
	if n.Kind != yaml.ScalarNode {
		return 0, false
	}
	if tag := n.ShortTag(); tag != "!!int" && tag != "!!float" {
		return 0, false
	}
	err := n.Decode(&f)
	return f, err == nil && !math.IsNaN(f) && !math.IsInf(f, 0)
}

// describe returns a value for an error message.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	const most = 60
	value := n.Value
	if len(value) > most {
		value = strings.ToValidUTF8(value[:most], "") + "…"
	}
	if _, ok := stringOf(n); ok {
		return strconv.Quote(value)
	}
	return value
}
