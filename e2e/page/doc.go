// Package page opens the page of proxyc report in a real browser, as its readers do. It is a module of its
// own, so that what drives the browser stays out of proxyc's.
package page
