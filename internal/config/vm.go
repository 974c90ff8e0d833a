package config

import "github.com/recluse-dev/recluse/sandbox/vm"

// VM configures the vm backend.
type VM struct {
	Monitor         string `key:"monitor" oneof:"auto qemu firecracker cloud-hypervisor" doc:"program that runs virtual machines; auto: the first that is installed"`
	QEMU            string `key:"qemu" path:"yes" doc:"path of QEMU; empty: qemu-system-x86_64 on PATH"`
	Firecracker     string `key:"firecracker" path:"yes" doc:"path of Firecracker, with its jailer in the same directory; empty: firecracker on PATH"`
	CloudHypervisor string `key:"cloud_hypervisor" path:"yes" doc:"path of Cloud Hypervisor; empty: cloud-hypervisor on PATH"`
	Accelerator     string `key:"accelerator" oneof:"auto kvm emulation" doc:"what runs the processors of a machine; auto: KVM, or emulation if there is no KVM and emulation is allowed"`
	Machine         string `key:"machine" oneof:"auto microvm q35" doc:"type of QEMU's machines; auto: q35; microvm boots faster, but some boots hang if it is emulated"`
	AllowEmulation  bool   `key:"allow_emulation" doc:"allow machines without KVM, which are slow and isolate like a container at most; refused in production"`
	Kernel          string `key:"kernel" path:"yes" doc:"kernel image for recluse vm setup; empty: one in /boot, or that of Debian's package linux-image-cloud-amd64"`
	Modules         string `key:"modules" path:"yes" doc:"directory with the modules of the kernel, such as /lib/modules/VERSION"`
}

// Options returns the options of the vm backend.
func (v VM) Options() vm.Options {
	return vm.Options{
		Monitor: v.Monitor, Accelerator: v.Accelerator, AllowEmulation: v.AllowEmulation,
		Machine: v.Machine,
		Programs: map[string]string{
			vm.MonitorQEMU: v.QEMU, vm.MonitorFirecracker: v.Firecracker, vm.MonitorCloudHypervisor: v.CloudHypervisor,
		},
	}
}

// defaultVM returns the default configuration of the vm backend.
func defaultVM() VM {
	return VM{Monitor: vm.MonitorAuto, Accelerator: vm.AcceleratorAuto, Machine: vm.MachineAuto}
}
