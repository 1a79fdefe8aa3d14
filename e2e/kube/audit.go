package kube

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"
)

// A Request is one that the API server has answered to the end, as its audit
// log has it. Watches are there once they are over.
type Request struct {
	Verb       string
	RequestURI string
	User       struct{ Username string }
	ObjectRef  struct{ Resource, Subresource, APIGroup string }

	ResponseStatus struct{ Code int }
	// Received is when it arrived.
	Received time.Time `json:"requestReceivedTimestamp"`
}

// Requests gives those of a user, or of all where it is "", that arrived after a time.
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
