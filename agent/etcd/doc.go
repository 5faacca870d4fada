// Package etcd is a coord.Backend over etcd, and what is done to its members. It is the only importer of the etcd client.
//
// There is one connection for each endpoint, and each call goes to several: the one that answered first the last time, and the others when it has not
// answered after a moment, or at once for renewals of a lease. Each attempt has its own deadline; the first good answer counts. So a member that hangs, is cut
// off or is being replaced costs a moment and no lease. An answer older than one that was seen before is not good (coord.Watermark).
//
// Transactions may be in two members at once. They compare revisions, so one of them is done at most; the Store sees by its mark which.
//
// Endpoints are those of the configuration, and besides those that the members of the cluster tell, which are asked now and then.
//
// Access by name and password: a token is got when etcd asks for it, with the password that the file has then, and if that is not right with the one
// that worked last. So a password is changed by writing the file first and then telling etcd.
package etcd
