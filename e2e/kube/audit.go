package kube

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"
)

// A Request is a completed request in the API server's audit log. Watches are logged when they
// end.
type Request struct {
	Verb       string
	RequestURI string
	User       struct{ Username string }
	ObjectRef  struct{ Resource, Subresource, APIGroup string }

	ResponseStatus struct{ Code int }
	// Received is the time of its arrival.
	Received time.Time `json:"requestReceivedTimestamp"`
}

// Requests returns the requests of a user, or with "" of all users, that arrived after a time.
func (c *Cluster) Requests(user string, after time.Time) ([]Request, error) {
	f, err := os.Open(c.AuditLog())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var requests []Request
	for d := json.NewDecoder(f); ; {
		var r Request
		switch err := d.Decode(&r); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // a line that is being written
			return requests, nil
		case err != nil:
			return nil, err
		case (user == "" || r.User.Username == user) && r.Received.After(after):
			requests = append(requests, r)
		}
	}
}
