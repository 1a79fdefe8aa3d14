package apply

import "regexp"

var (
	// credentials matches the user and password of a URL in a command line, an error or a log line. A
	// password may contain any character that ends a URL's host.
	credentials = regexp.MustCompile(`(://|-master[ =]|proxy-url' "|proxy address ")[^\s"']*@`)
	// invalidURL matches an error of net/url, which quotes a part of the URL.
	invalidURL = regexp.MustCompile(`(parse "[^"]*"): .*`)
)

// Redact removes the user and password of URLs from a text.
func Redact(text string) string {
	if hidden := credentials.ReplaceAllString(text, "${1}xxxxx@"); hidden != text {
		return invalidURL.ReplaceAllString(hidden, "$1: is not a valid URL")
	}
	return text
}

// RedactError removes the user and password of URLs from the text of an error.
func RedactError(err error) error {
	if err == nil || Redact(err.Error()) == err.Error() {
		return err
	}
	return redacted{err}
}

type redacted struct{ error }

func (r redacted) Error() string { return Redact(r.error.Error()) }

func (r redacted) Unwrap() error { return r.error }
