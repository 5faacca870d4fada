// Package fake is a power switch in memory, which can be told to misbehave.
package fake
