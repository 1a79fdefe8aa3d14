// Package page opens the page of proxyc report in a real browser. It is a module of its own, to
// keep the browser's driver out of proxyc's.
package page
