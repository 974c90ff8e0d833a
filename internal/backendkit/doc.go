// Package backendkit has what backends share, so that a new one writes only what is its own: how it
// starts the guest and how it reaches it.
//
//   - A sandbox's [Record] tells other programs how to take it over. A [Store] keeps records in
//     directories of this machine, one per sandbox, with a lock for whoever is attached. Backends whose
//     sandboxes are elsewhere (an engine, a service) write the record there, and what changes later into
//     [Notes]; an [Instance] tells their sandboxes from those of other servers.
//   - A [Process] is a program that must end a sandbox, or a process that holds one. A [Sweeper] ends sandboxes
//     whose program has died.
//   - A [Machine] is the common part of sandbox.Machine; [Incidents] the common part of backend.Witness.
//   - [GuestConfig] and [Tmpfs] say what the guest is told at its birth.
//   - [Proof] remembers between programs that a sandbox could be made, so that not each one tries.
//   - [RefuseInProduction], [DecodeOptions] and [Restored] judge and build specs.
package backendkit
