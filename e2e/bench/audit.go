package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

// A request is a kind of request that a user made to the API server, and how often.
type request struct {
	Verb     string `json:"verb"`
	Resource string `json:"resource"`
	Query    string `json:"query,omitempty"` // what decides how much is sent
	Start    int    `json:"start"`           // until the program had started
	Later    int    `json:"later"`
}

// telling are the parameters that decide how much is sent.
var telling = []string{"labelSelector", "fieldSelector", "sendInitialEvents", "allowWatchBookmarks", "limit"}

// requests counts what a user has asked for from the byte at from in an audit
// log on. A watch is in the log once it has ended.
func requests(log string, from int64, user string, started time.Time) ([]request, error) {
	file, err := os.Open(log)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(from, io.SeekStart); err != nil {
		return nil, err
	}
	found := map[request]*request{}
	for lines := bufio.NewReader(file); ; {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return sorted(found), nil
		}
		if err != nil {
			return nil, err
		}
		var e struct {
			Verb, RequestURI         string
			User                     struct{ Username string }
			ObjectRef                struct{ Resource string }
			RequestReceivedTimestamp time.Time
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, err
		}
		if e.User.Username != user {
			continue
		}
		key := request{Verb: e.Verb, Resource: e.ObjectRef.Resource, Query: query(e.RequestURI)}
		r := found[key]
		if r == nil {
			r = &key
			found[key] = r
		}
		if e.RequestReceivedTimestamp.Before(started) {
			r.Start++
		} else {
			r.Later++
		}
	}
}

// query keeps what is telling of a URI's parameters.
func query(uri string) string {
	u, err := url.ParseRequestURI(uri)
	if err != nil {
		return ""
	}
	var kept []string
	values := u.Query()
	for _, name := range telling {
		if v := values.Get(name); v != "" {
			kept = append(kept, name+"="+v)
		}
	}
	return strings.Join(kept, " ")
}

func sorted(found map[request]*request) (all []request) {
	for _, r := range found {
		all = append(all, *r)
	}
	slices.SortFunc(all, func(a, b request) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Verb, b.Verb), cmp.Compare(a.Query, b.Query))
	})
	return all
}
