// Package parse reads what ipvsadm -Sn and ipset save print.
package parse
