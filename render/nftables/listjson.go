package nftables

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// ListOfJSON writes what nft -j list ruleset prints in the words of nft list ruleset. What
// it does not know stays as JSON, which ParseList takes for a statement that is not understood.
func ListOfJSON(text string) (string, error) {
	var doc struct {
		Objects []map[string]json.RawMessage `json:"nftables"`
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		return "", fmt.Errorf("is no JSON of nft: %w", err)
	}
	type table struct {
		head   string
		chains []string
		rules  map[string][]string
		heads  map[string]string
		rest   []string
		sets   []jsonObject
		// updated are the sets that rules update. nft tells that of them, but not in JSON.
		updated map[string]bool
	}
	tables := map[string]*table{}
	var order []string
	for _, o := range doc.Objects {
		for kind, raw := range o {
			if kind == "metainfo" {
				continue
			}
			var x jsonObject
			err := json.Unmarshal(raw, &x.jsonName)
			if slices.Contains([]string{"table", "chain", "rule", "set", "map"}, kind) && err == nil {
				dec := json.NewDecoder(bytes.NewReader(raw))
				dec.UseNumber()
				err = dec.Decode(&x)
			}
			if err != nil {
				return "", fmt.Errorf("%s: %w", strings.Join(strings.Fields(strings.Join([]string{kind, x.Family, x.Table, x.Chain, x.Name}, " ")), " "), err)
			}
			name := x.Family + " " + x.Table
			if kind == "table" {
				name = x.Family + " " + x.Name
			}
			t := tables[name]
			if t == nil {
				t = &table{head: "table " + name + " {\n", rules: map[string][]string{}, heads: map[string]string{}, updated: map[string]bool{}}
				tables[name] = t
				order = append(order, name)
			}
			switch kind {
			case "table":
				if flags := jsonWords(x.Flags); flags != "" {
					t.head += "\tflags " + flags + "\n"
				}
			case "chain":
				t.chains = append(t.chains, x.Name)
				if x.Hook != "" {
					t.heads[x.Name] = fmt.Sprintf("\t\ttype %s hook %s priority %d; policy %s;\n", x.Type, x.Hook, x.Prio, x.Policy)
				}
			case "rule":
				words := make([]string, 0, len(x.Expr))
				for _, e := range x.Expr {
					stmt := jsonStmt(e)
					if set, ok := strings.CutPrefix(stmt, "update @"); ok {
						set, _, _ = strings.Cut(set, " ")
						t.updated[set] = true
					}
					words = append(words, stmt)
				}
				t.rules[x.Chain] = append(t.rules[x.Chain], strings.Join(words, " "))
			case "set", "map":
				t.sets = append(t.sets, x)
			default:
				t.rest = append(t.rest, kind+" "+x.Name+" {\n}")
			}
		}
	}
	var b strings.Builder
	for _, name := range order {
		t := tables[name]
		b.WriteString(t.head)
		for _, r := range t.rest {
			b.WriteString("\t" + r + "\n")
		}
		for i := range t.sets {
			b.WriteString("\t" + t.sets[i].set(t.updated[t.sets[i].Name]) + "\n")
		}
		for _, c := range t.chains {
			b.WriteString("\tchain " + c + " {\n" + t.heads[c])
			for _, r := range t.rules[c] {
				b.WriteString("\t\t" + r + "\n")
			}
			b.WriteString("\t}\n")
		}
		b.WriteString("}\n")
	}
	return b.String(), nil
}

// jsonName is what names any object.
type jsonName struct{ Family, Table, Chain, Name string }

// jsonObject is a table, chain, rule, set or map.
type jsonObject struct {
	jsonName
	Type          any
	Hook, Policy  string
	Prio          int
	Flags         any
	Expr          []any
	Map           any
	Elem          []any
	Timeout, Size json.Number
}

// set writes a set or map, which is dynamic if rules update it.
func (x *jsonObject) set(updated bool) string {
	var b strings.Builder
	kind := "set"
	if x.Map != nil {
		kind = "map"
	}
	fmt.Fprintf(&b, "%s %s {\n\t\ttype %s", kind, x.Name, jsonList(x.Type, " . "))
	if kind == "map" {
		b.WriteString(" : " + jsonList(x.Map, " . "))
	}
	b.WriteString("\n")
	flags := jsonWords(x.Flags)
	if updated && !strings.Contains(flags, "dynamic") {
		flags = strings.TrimSuffix("dynamic,"+flags, ",")
	}
	if flags != "" {
		fmt.Fprintf(&b, "\t\tflags %s\n", flags)
	}
	if x.Timeout != "" {
		fmt.Fprintf(&b, "\t\ttimeout %ss\n", x.Timeout)
	}
	if x.Size != "" {
		fmt.Fprintf(&b, "\t\tsize %s\n", x.Size)
	}
	if len(x.Elem) > 0 {
		fmt.Fprintf(&b, "\t\telements = { %s }\n", jsonElements(x.Elem))
	}
	return b.String() + "\t}"
}

// jsonElements writes what stands between the braces of a set or map.
func jsonElements(all []any) string {
	words := make([]string, len(all))
	for i, e := range all {
		if pair, ok := e.([]any); ok && len(pair) == 2 {
			words[i] = jsonExpr(pair[0]) + " : " + jsonExpr(pair[1])
		} else {
			words[i] = jsonExpr(e)
		}
	}
	return strings.Join(words, ", ")
}

func jsonWords(v any) string { return jsonList(v, ",") }

// jsonList joins a list, or returns the only word that there is.
func jsonList(v any, by string) string {
	list, ok := v.([]any)
	if !ok {
		if v == nil {
			return ""
		}
		return jsonExpr(v)
	}
	words := make([]string, len(list))
	for i, e := range list {
		words[i] = jsonExpr(e)
	}
	return strings.Join(words, by)
}

// only returns the key and value of an object that has one key.
func only(v any) (key string, value any, ok bool) {
	m, _ := v.(map[string]any)
	for k, v := range m {
		key, value = k, v
	}
	return key, value, len(m) == 1
}

// unknownJSON is a word that no statement begins with.
func unknownJSON(v any) string {
	text, _ := json.Marshal(v)
	return "json:" + strings.NewReplacer(" ", "", "\"", "'", "{", "(", "}", ")").Replace(string(text))
}

func jsonStmt(v any) string {
	if text, ok := v.(string); ok {
		return text // nft has no JSON for it, and writes its own words
	}
	key, value, ok := only(v)
	if !ok {
		return unknownJSON(v)
	}
	m, _ := value.(map[string]any)
	has := func(keys ...string) bool {
		for k := range m {
			if !slices.Contains(keys, k) {
				return false
			}
		}
		return true
	}
	switch key {
	case "drop", "accept", "return", "continue", "jump", "goto":
		return jsonExpr(v)
	case "counter":
		return "counter"
	case "masquerade":
		if !has("flags") {
			return unknownJSON(v)
		}
		return strings.TrimSpace("masquerade " + strings.ReplaceAll(jsonWords(m["flags"]), ",", " "))
	case "reject":
		if m == nil {
			return "reject"
		}
		if !has("type", "expr") {
			return unknownJSON(v)
		}
		if m["expr"] == nil {
			return "reject with " + jsonExpr(m["type"])
		}
		return fmt.Sprintf("reject with %s type %s", jsonExpr(m["type"]), jsonExpr(m["expr"]))
	case "match":
		op := jsonExpr(m["op"])
		switch op {
		case "==", "in":
			op = ""
		case "!=":
			op = "!= "
		default:
			return unknownJSON(v)
		}
		return jsonExpr(m["left"]) + " " + op + jsonRight(m["right"])
	case "vmap":
		return jsonExpr(m["key"]) + " vmap " + jsonRight(m["data"])
	case "mangle":
		return jsonExpr(m["key"]) + " set " + jsonExpr(m["value"])
	case "dnat":
		if !has("family", "addr", "port") {
			return unknownJSON(v)
		}
		to := jsonExpr(m["addr"])
		if port, ok := m["port"]; ok {
			if strings.Contains(to, ":") && !strings.Contains(to, " ") {
				to = "[" + to + "]"
			}
			to += ":" + jsonExpr(port)
		}
		return strings.TrimSpace("dnat "+jsonWords(m["family"])) + " to " + to
	case "set":
		if !has("op", "elem", "set") || m["op"] != "update" {
			return unknownJSON(v)
		}
		return "update " + jsonExpr(m["set"]) + " { " + jsonExpr(m["elem"]) + " }"
	}
	return unknownJSON(v)
}

// jsonRight writes the right side of a match: a set in braces, or a value.
func jsonRight(v any) string {
	if key, value, ok := only(v); ok && key == "set" {
		list, _ := value.([]any)
		return "{ " + jsonElements(list) + " }"
	}
	if list, ok := v.([]any); ok {
		return "{ " + jsonElements(list) + " }"
	}
	return jsonExpr(v)
}

func jsonExpr(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	case bool, nil:
		return unknownJSON(v)
	case []any:
		return jsonList(v, " . ")
	}
	key, value, ok := only(v)
	if !ok {
		return unknownJSON(v)
	}
	m, _ := value.(map[string]any)
	switch key {
	case "concat":
		return jsonList(value, " . ")
	case "payload":
		return jsonExpr(m["protocol"]) + " " + jsonExpr(m["field"])
	case "meta":
		switch k := jsonExpr(m["key"]); k {
		case "iifname", "oifname", "iif", "oif":
			return k
		default:
			return "meta " + k
		}
	case "ct":
		words := []string{"ct"}
		if dir, ok := m["dir"]; ok {
			words = append(words, jsonExpr(dir))
		}
		return strings.Join(append(words, jsonExpr(m["key"])), " ")
	case "fib":
		return "fib " + jsonList(m["flags"], " . ") + " " + jsonExpr(m["result"])
	case "numgen":
		if from := m["offset"]; from != nil && jsonExpr(from) != "0" {
			return unknownJSON(v)
		}
		return "numgen " + jsonExpr(m["mode"]) + " mod " + jsonExpr(m["mod"])
	case "jhash":
		if from := m["offset"]; from != nil && jsonExpr(from) != "0" || m["seed"] == nil {
			return unknownJSON(v)
		}
		return "jhash " + jsonExpr(m["expr"]) + " mod " + jsonExpr(m["mod"]) + " seed " + jsonExpr(m["seed"])
	case "prefix":
		return jsonExpr(m["addr"]) + "/" + jsonExpr(m["len"])
	case "elem":
		return jsonExpr(m["val"])
	case "map":
		return jsonExpr(m["key"]) + " map " + jsonRight(m["data"])
	case "drop", "accept", "return", "continue":
		return key
	case "jump", "goto":
		return key + " " + jsonExpr(m["target"])
	case "|", "&", "^":
		list, _ := value.([]any)
		if len(list) == 2 && !isOperation(list[1]) { // words are read from left to right
			return jsonExpr(list[0]) + " " + key + " " + jsonExpr(list[1])
		}
	}
	return unknownJSON(v)
}

func isOperation(v any) bool {
	key, _, ok := only(v)
	return ok && slices.Contains([]string{"|", "&", "^", "<<", ">>"}, key)
}
