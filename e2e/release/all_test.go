//go:build all

package main

func init() { ownCache = true }
