// Package params reads the metadata that a fence agent prints about itself (XML) and checks parameters against it:
// unknown, missing, of the wrong type. It is pure: no process is started here.
package params
