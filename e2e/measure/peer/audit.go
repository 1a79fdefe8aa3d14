package peer

import (
	"cmp"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/proxyc/proxyc/e2e/kube"
)

// A request is a kind of request that a user made to the API server, and how often.
type request struct {
	Verb     string `json:"verb"`
	Resource string `json:"resource"`
	Query    string `json:"query,omitempty"` // parameters that affect how much is sent
	Start    int    `json:"start"`           // until the program had started
	Later    int    `json:"later"`
}

// sizeParams are the parameters that affect how much is sent.
var sizeParams = []string{"labelSelector", "fieldSelector", "sendInitialEvents", "allowWatchBookmarks", "limit"}

// requests counts the requests of a user to the API server since a time.
func requests(c *kube.Cluster, user string, since, started time.Time) (all []request, err error) {
	made, err := c.Requests(user, since)
	if err != nil {
		return nil, err
	}
	at := map[request]int{}
	for _, m := range made {
		key := request{Verb: m.Verb, Resource: m.ObjectRef.Resource, Query: query(m.RequestURI)}
		i, ok := at[key]
		if !ok {
			i = len(all)
			at[key] = i
			all = append(all, key)
		}
		if m.Received.Before(started) {
			all[i].Start++
		} else {
			all[i].Later++
		}
	}
	slices.SortFunc(all, func(a, b request) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Verb, b.Verb), cmp.Compare(a.Query, b.Query))
	})
	return all, nil
}

// query returns the telling parameters of a URI.
func query(uri string) string {
	u, err := url.ParseRequestURI(uri)
	if err != nil {
		return ""
	}
	var kept []string
	values := u.Query()
	for _, name := range sizeParams {
		if v := values.Get(name); v != "" {
			kept = append(kept, name+"="+v)
		}
	}
	return strings.Join(kept, " ")
}
