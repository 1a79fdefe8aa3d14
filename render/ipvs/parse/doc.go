// Package parse parses the output of ipvsadm -Sn and ipset save.
package parse
