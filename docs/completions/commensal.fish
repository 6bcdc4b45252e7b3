# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_commensal_global_optspecs
    string join \n state-dir= cgroup-prefix= cgroup-root= v/verbose h/help V/version
end

function __fish_commensal_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_commensal_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_commensal_using_subcommand
    set -l cmd (__fish_commensal_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c commensal -n "__fish_commensal_needs_command" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_needs_command" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_needs_command" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_needs_command" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_needs_command" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_needs_command" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_needs_command" -f -a "doctor" -d 'Say what this machine can enforce, by trying it in a scratch cgroup; what is missing and what would help'
complete -c commensal -n "__fish_commensal_needs_command" -f -a "plan" -d 'Show every write that `apply` would make, in order, with its reason. Changes nothing: knobs are tried in an empty scratch cgroup only'
complete -c commensal -n "__fish_commensal_needs_command" -f -a "apply" -d 'Make it so, once; every original value is kept in the undo journal'
complete -c commensal -n "__fish_commensal_needs_command" -f -a "restore" -d 'Put back every original value and remove commensal\'s own cgroups. Works with everything else dead'
complete -c commensal -n "__fish_commensal_needs_command" -f -a "run" -d 'Start a command inside a group; signals and the exit status pass through'
complete -c commensal -n "__fish_commensal_needs_command" -f -a "agent" -d 'Keep the groups in force: follow members, put back what others change, guard the machine if the agent dies. SIGHUP reads the groups again, SIGTERM ends it'
complete -c commensal -n "__fish_commensal_needs_command" -f -a "guard" -d 'Bring the machine into its safe state when the agent is gone or hangs (started by the agent, or as a unit of its own)'
complete -c commensal -n "__fish_commensal_needs_command" -f -a "status" -d 'Say what is in force: groups, limits, queues, and what is wrong. Exit status 1 when not all that was asked for is, 2 without an agent'
complete -c commensal -n "__fish_commensal_needs_command" -f -a "explain" -d 'Say why each limit of a group is what it is: the rule that won, and the formula with its inputs'
complete -c commensal -n "__fish_commensal_needs_command" -f -a "top" -d 'Watch the groups live; ? tells the keys'
complete -c commensal -n "__fish_commensal_needs_command" -f -a "queue" -d 'Show who runs and who waits in the admission queues, and whether one is held closed. Changes nothing'
complete -c commensal -n "__fish_commensal_needs_command" -f -a "blame" -d 'Say who held the CPU while a service waited for it: exactly, from inside the kernel, and without a change to the machine. Needs root (or CAP_BPF and CAP_PERFMON)'
complete -c commensal -n "__fish_commensal_needs_command" -f -a "lab" -d 'Measure what co-location costs'
complete -c commensal -n "__fish_commensal_needs_command" -f -a "density" -d 'Say how many VMs or databases fit on a server, and what it costs'
complete -c commensal -n "__fish_commensal_needs_command" -f -a "sched" -d 'Load, watch and unload the scheduler that keeps offline work off the CPU while the machine runs'
complete -c commensal -n "__fish_commensal_needs_command" -f -a "workload" -d 'The lab\'s built-in workloads (started by the lab itself)'
complete -c commensal -n "__fish_commensal_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c commensal -n "__fish_commensal_using_subcommand doctor" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand doctor" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand doctor" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand doctor" -l json -d 'Print JSON'
complete -c commensal -n "__fish_commensal_using_subcommand doctor" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand doctor" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand plan" -s c -l config -d 'A groups file, or a folder of *.toml' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand plan" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand plan" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand plan" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand plan" -l json -d 'Print JSON'
complete -c commensal -n "__fish_commensal_using_subcommand plan" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand plan" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand plan" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand apply" -s c -l config -d 'A groups file, or a folder of *.toml' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand apply" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand apply" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand apply" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand apply" -l json -d 'Print JSON'
complete -c commensal -n "__fish_commensal_using_subcommand apply" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand apply" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand apply" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand restore" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand restore" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand restore" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand restore" -l json -d 'Print JSON'
complete -c commensal -n "__fish_commensal_using_subcommand restore" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand restore" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand restore" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand run" -s g -l group -d 'The group to start the command in' -r
complete -c commensal -n "__fish_commensal_using_subcommand run" -s c -l config -d 'A groups file, or a folder of *.toml' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand run" -l queue-timeout -d 'Wait in the group\'s queue for at most this long, such as 30s or 10min [default: the group\'s queue.timeout, which also is the most]' -r
complete -c commensal -n "__fish_commensal_using_subcommand run" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand run" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand run" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand run" -l no-wait -d 'Fail at once when the group\'s queue would make it wait'
complete -c commensal -n "__fish_commensal_using_subcommand run" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand run" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand run" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and not __fish_seen_subcommand_from reload pause resume canary help" -s c -l config -d 'A groups file, or a folder of *.toml' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand agent; and not __fish_seen_subcommand_from reload pause resume canary help" -l interval -d 'Length of a tick' -r
complete -c commensal -n "__fish_commensal_using_subcommand agent; and not __fish_seen_subcommand_from reload pause resume canary help" -l lease -d 'How long the agent may be silent before the guard ends it and brings the safe state' -r
complete -c commensal -n "__fish_commensal_using_subcommand agent; and not __fish_seen_subcommand_from reload pause resume canary help" -l on-exit -d 'What to leave behind: the safe state (offline work held back, no limit on online work), everything as it is, or the original values' -r -f -a "safe\t'The safe state'
keep\t'Everything, as it is'
restore\t'Original values'"
complete -c commensal -n "__fish_commensal_using_subcommand agent; and not __fish_seen_subcommand_from reload pause resume canary help" -l metrics-listen -d 'Serve metrics over TCP at this address as well, read only' -r
complete -c commensal -n "__fish_commensal_using_subcommand agent; and not __fish_seen_subcommand_from reload pause resume canary help" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand agent; and not __fish_seen_subcommand_from reload pause resume canary help" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand agent; and not __fish_seen_subcommand_from reload pause resume canary help" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand agent; and not __fish_seen_subcommand_from reload pause resume canary help" -l no-guard -d 'Run without a guard: if the agent dies, everything stays as it is until `commensal restore`'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and not __fish_seen_subcommand_from reload pause resume canary help" -l no-judge -d 'Do not load the judge (BPF): who makes online groups wait is not known then, and their run delay and pressure decide'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and not __fish_seen_subcommand_from reload pause resume canary help" -l takeover -d 'Take the place of the agent that runs, which ends without changing anything'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and not __fish_seen_subcommand_from reload pause resume canary help" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and not __fish_seen_subcommand_from reload pause resume canary help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and not __fish_seen_subcommand_from reload pause resume canary help" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and not __fish_seen_subcommand_from reload pause resume canary help" -f -a "reload" -d 'Read the groups again now, and take them into force. Exit status 2 with the mistakes when the old ones stay'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and not __fish_seen_subcommand_from reload pause resume canary help" -f -a "pause" -d 'Write nothing until `resume`: limits stay as they are, and the agent goes on looking'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and not __fish_seen_subcommand_from reload pause resume canary help" -f -a "resume" -d 'Write again'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and not __fish_seen_subcommand_from reload pause resume canary help" -f -a "canary" -d 'Prove what isolation does on this machine now: take it from the offline groups for short windows in random order, and compare what online groups wait. It ends as soon as the effect is shown. Exit status 0: online groups wait longer without isolation; 1: they wait longer with it; 3: neither is shown'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and not __fish_seen_subcommand_from reload pause resume canary help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from reload" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from reload" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from reload" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from reload" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from reload" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from reload" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from pause" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from pause" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from pause" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from pause" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from pause" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from pause" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from resume" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from resume" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from resume" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from resume" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from resume" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from resume" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from canary" -l for -d 'How long, at most 1h' -r
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from canary" -l window -d 'Length of a window. Windows come in pairs, one with isolation and one without' -r
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from canary" -l settle -d 'What is left out at the beginning of each window [default: a fifth of it]' -r
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from canary" -l off -d 'Largest share of the time without isolation, per cent' -r
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from canary" -l seed -d 'Seed of the order [default: of the clock]' -r
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from canary" -l max-blamed -d 'End a window without isolation when an online group waits longer for offline work than this, ms per second that it has a CPU. Three such windows end the canary' -r
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from canary" -l max-run-delay -d '… or when its run delay is more than so many times that with isolation (and above 200 ms per second)' -r
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from canary" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from canary" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from canary" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from canary" -l whole -d 'Go on to the end also when the effect is shown before'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from canary" -l json -d 'Print JSON'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from canary" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from canary" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from canary" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from help" -f -a "reload" -d 'Read the groups again now, and take them into force. Exit status 2 with the mistakes when the old ones stay'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from help" -f -a "pause" -d 'Write nothing until `resume`: limits stay as they are, and the agent goes on looking'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from help" -f -a "resume" -d 'Write again'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from help" -f -a "canary" -d 'Prove what isolation does on this machine now: take it from the offline groups for short windows in random order, and compare what online groups wait. It ends as soon as the effect is shown. Exit status 0: online groups wait longer without isolation; 1: they wait longer with it; 3: neither is shown'
complete -c commensal -n "__fish_commensal_using_subcommand agent; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c commensal -n "__fish_commensal_using_subcommand guard" -l starter -d 'Who started it, when that may have ended already [default: its parent]' -r
complete -c commensal -n "__fish_commensal_using_subcommand guard" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand guard" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand guard" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand guard" -l once -d 'End when the first agent has ended, or who started the guard before one has come'
complete -c commensal -n "__fish_commensal_using_subcommand guard" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand guard" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand guard" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand status" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand status" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand status" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand status" -l json -d 'Print JSON'
complete -c commensal -n "__fish_commensal_using_subcommand status" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand status" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand status" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand explain" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand explain" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand explain" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand explain" -l json -d 'Print JSON'
complete -c commensal -n "__fish_commensal_using_subcommand explain" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand explain" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand explain" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand top" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand top" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand top" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand top" -l once -d 'Print one screen as text, with every group; so does an output that is no terminal'
complete -c commensal -n "__fish_commensal_using_subcommand top" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand top" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand top" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand queue" -s c -l config -d 'A groups file, or a folder of *.toml' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand queue" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand queue" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand queue" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand queue" -l json -d 'Print JSON'
complete -c commensal -n "__fish_commensal_using_subcommand queue" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand queue" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand queue" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand blame" -l against -d 'Whose guilt to judge; named in the same ways. May be given several times' -r
complete -c commensal -n "__fish_commensal_using_subcommand blame" -l for -d 'How long to look, such as 30s or 5min [default: until Ctrl-C]' -r
complete -c commensal -n "__fish_commensal_using_subcommand blame" -l blame-below -d 'Wait blamed on them that is allowed, ms per second that the targets had a CPU [default: 50]' -r
complete -c commensal -n "__fish_commensal_using_subcommand blame" -l preempt-below -d 'How long they may stay on a CPU that a target was woken on, us, 99th percentile [default: 100]' -r
complete -c commensal -n "__fish_commensal_using_subcommand blame" -s c -l config -d 'A groups file, or a folder of *.toml' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand blame" -l svg -d 'Write a picture with a flame-like bar per waiter and culprit; - prints it' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand blame" -l html -d 'Write picture and figures as one HTML file; - prints it' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand blame" -l prometheus -d 'Write counters in Prometheus\' text format, every five seconds and at the end (for node_exporter\'s textfile collector); - prints them at the end' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand blame" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand blame" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand blame" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand blame" -l check -d 'Exit with 1 when those of --against are guilty, and with 3 when nothing can be said'
complete -c commensal -n "__fish_commensal_using_subcommand blame" -l top -d 'Redraw a whole screen every second instead of adding lines'
complete -c commensal -n "__fish_commensal_using_subcommand blame" -l no-interrupts -d 'Leave interrupts to the tasks that they interrupt: a little cheaper'
complete -c commensal -n "__fish_commensal_using_subcommand blame" -l verify -d 'Compare every wait with the kernel\'s own figure'
complete -c commensal -n "__fish_commensal_using_subcommand blame" -l json -d 'Print JSON'
complete -c commensal -n "__fish_commensal_using_subcommand blame" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand blame" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand blame" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and not __fish_seen_subcommand_from run list show check profile doctor calibrate report load diff baseline history help" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand lab; and not __fish_seen_subcommand_from run list show check profile doctor calibrate report load diff baseline history help" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and not __fish_seen_subcommand_from run list show check profile doctor calibrate report load diff baseline history help" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and not __fish_seen_subcommand_from run list show check profile doctor calibrate report load diff baseline history help" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and not __fish_seen_subcommand_from run list show check profile doctor calibrate report load diff baseline history help" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and not __fish_seen_subcommand_from run list show check profile doctor calibrate report load diff baseline history help" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and not __fish_seen_subcommand_from run list show check profile doctor calibrate report load diff baseline history help" -f -a "run" -d 'Run an experiment: verdict, table, run.json, report.html. Exit status 0 PASS, 1 FAIL or BROKEN, 3 INCONCLUSIVE, 4 INVALID'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and not __fish_seen_subcommand_from run list show check profile doctor calibrate report load diff baseline history help" -f -a "list" -d 'List the experiments that come with this program'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and not __fish_seen_subcommand_from run list show check profile doctor calibrate report load diff baseline history help" -f -a "show" -d 'Print an experiment\'s file, to be changed and run'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and not __fish_seen_subcommand_from run list show check profile doctor calibrate report load diff baseline history help" -f -a "check" -d 'Look whether everything that an experiment needs is there. Exit status 0 when it is, 2 when not'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and not __fish_seen_subcommand_from run list show check profile doctor calibrate report load diff baseline history help" -f -a "profile" -d 'Run one service against each built-in antagonist, and print what each does to it. Exit status 0, or 4 when this machine cannot tell'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and not __fish_seen_subcommand_from run list show check profile doctor calibrate report load diff baseline history help" -f -a "doctor" -d 'Say within about a minute whether this machine can decide an experiment\'s threshold, and how long a run would take: its two identical arms alone. Exit status 0 when it can, 4 when not'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and not __fish_seen_subcommand_from run list show check profile doctor calibrate report load diff baseline history help" -f -a "calibrate" -d 'Say how often the lab is right on this machine: runs with harms of known size in place of isolation, and a table of right, wrong and open answers. Exit status 0 when the goals hold, 1 when not'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and not __fish_seen_subcommand_from run list show check profile doctor calibrate report load diff baseline history help" -f -a "report" -d 'Show a recorded run again, with the verdict that its blocks support'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and not __fish_seen_subcommand_from run list show check profile doctor calibrate report load diff baseline history help" -f -a "load" -d 'Load an HTTP service on a schedule that does not wait for it, and say how long requests took since they were due. Exit status 4 when the measurement cannot be believed'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and not __fish_seen_subcommand_from run list show check profile doctor calibrate report load diff baseline history help" -f -a "diff" -d 'Compare two recorded runs of one machine and one plan, or one with a baseline'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and not __fish_seen_subcommand_from run list show check profile doctor calibrate report load diff baseline history help" -f -a "baseline" -d 'Runs that are kept under a name, to compare later ones with'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and not __fish_seen_subcommand_from run list show check profile doctor calibrate report load diff baseline history help" -f -a "history" -d 'Show how the answers of this machine moved from run to run'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and not __fish_seen_subcommand_from run list show check profile doctor calibrate report load diff baseline history help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l for -d 'How long a run by short windows may take; one that is decided ends earlier [default: the experiment\'s]' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l rounds -d 'Rounds of long blocks; each runs every arm once. Below 6 no interval exists [default: the experiment\'s]' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l block -d 'Measured seconds per long block [default: the experiment\'s]' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l seed -d 'Seed of the order of the arms and of the requests [default: the experiment\'s]' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l threshold -d 'Harm that still counts as none, in per cent [default: the experiment\'s]' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l load -d 'Offered load: requests per second, or a share of the most that the service sustains alone, such as 60%' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l arms -d 'Arms, in place of the experiment\'s: baseline,baseline2,contended,isolated:cpu.idle,…' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l restart -d 'When the service is started anew: block, round or never [default: the experiment\'s]' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l slo -d 'Objective, such as p99=5ms: a gate on the share of requests over that latency, and windows are counted against it' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l window -d 'Length of a window of the objective' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l min-offline -d 'Least share of the offline work that an isolated arm must keep, in per cent' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l vary -d 'One limit of the offline work, each of its values an isolated arm of one run: cpu.max=20%,50%,80%. Ends with the largest that holds; 0 when the least value does. Means may stand before it: best+cpu.max=50%,80%' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l ramp -d 'Threads of the built-in offline work, each number an arm without and one with isolation: 0,1,2,4. Asks for long blocks' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l gate-query -d 'A gate on what Prometheus says of every block, such as \'p95 of checkout=histogram_quantile(0.95, …[$window])\'; less is better, or more with higher:NAME=QUERY. Can be given several times; asks for long blocks' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l prometheus -d 'The Prometheus that --gate-query asks [default: http://127.0.0.1:9090]' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l scrape -d 'How often it scrapes the service [default: 15s]; a block must hold four scrapes' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l resume -d 'Go on with an interrupted run\'s record; it is then the record of the whole' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l port -d 'Port of the service; 0 is any free one' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l style -d 'The table of a document, after ours: openeuler, alinux, plugsched or default [default: the experiment\'s]' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -s o -l out -d 'Where to write the record; the page with the charts goes beside it, as .html' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l save-baseline -d 'Keep the record under this name too, for `lab diff --baseline`; it replaces what had the name' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l pilot -d 'The same as `lab doctor`: only the two identical arms, and how long a run would take'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l adaptive -d 'Look after 8, 16 and 24 rounds, and end when it is decided; each look has a third of the error'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l no-blame -d 'Do not look who made the service wait: an experiment about latency alone'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -l json -d 'Print the record instead of the report'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from run" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from list" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from list" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from list" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from list" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from list" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from show" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from show" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from show" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from show" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from show" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from check" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from check" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from check" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from check" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from check" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from check" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from profile" -l against -d 'Antagonists, in place of all: cpu,vector,l2,l3,memory,page-cache,fork,disk,network' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from profile" -l load -d 'Offered loads: requests per second, or shares of the most that the service sustains alone, such as 20%,60%' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from profile" -l rounds -d 'Rounds; each runs every arm once' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from profile" -l block -d 'Measured seconds per block' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from profile" -s o -l out -d 'Where to write the record; with several loads, a number is added to its name' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from profile" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from profile" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from profile" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from profile" -l isolated -d 'Run each under isolation as well'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from profile" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from profile" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from profile" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from doctor" -l threshold -d 'The threshold that you want to decide, in per cent [default: the experiment\'s]' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from doctor" -l block -d 'Measured seconds per long block; by long blocks even where the experiment has short windows' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from doctor" -l load -d 'Offered load: requests per second, or a share of the most that the service sustains alone, such as 60%' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from doctor" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from doctor" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from doctor" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from doctor" -l json -d 'Print JSON'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from doctor" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from doctor" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from doctor" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from calibrate" -l runs -d 'Runs in all, with those that the record has already; each gives an answer for every harm' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from calibrate" -l for -d 'How long a run may take; at least six rounds are run' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from calibrate" -l seed -d 'Seed of the first run; each later one has the next' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from calibrate" -l harm -d 'The harms: what each request takes longer, in per cent of the median or of P90 of the service alone [default: 0,3,5,10,30, and beside a neighbour p90:30 as well]' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from calibrate" -l beside -d 'A neighbour meanwhile: busy:CPUS, such as busy:0.5, or a command for the shell, which is started again whenever it ends' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from calibrate" -s o -l out -d 'The record. One that is there already is gone on with' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from calibrate" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from calibrate" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from calibrate" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from calibrate" -l no-blame -d 'Do not look who made the service wait'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from calibrate" -l markdown -d 'Print the tables as Markdown'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from calibrate" -l json -d 'Print the counts as JSON'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from calibrate" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from calibrate" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from calibrate" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from report" -l format -d 'In which form' -r -f -a "terminal\t'For reading in a terminal'
markdown\t'For a pull request or a wiki'
csv\t'One row per block'
html\t'One page with charts, for a browser; it needs no network'
junit\t'One testcase per gate metric of each isolated arm, for a CI server'
svg\t'The charts, each a file'
png\t'The charts at twice their size; needs a build with the feature `png`'"
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from report" -s o -l out -d 'Where to write: a file, a folder for all charts, or - for standard output [default: -]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from report" -l style -d 'The table of a document, in place of ours: openeuler, alinux, plugsched or default' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from report" -l chart -d 'Draw this chart alone: ratios, spectrum, timeline, cpu or waits' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from report" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from report" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from report" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from report" -l strict -d 'In JUnit, what is inconclusive or invalid has failed instead of being skipped'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from report" -l exit-verdict -d 'End with the status of the verdict, as the run itself did: 0 PASS, 1 FAIL or BROKEN, 3 INCONCLUSIVE, 4 INVALID'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from report" -l json -d 'Print the record with its results computed anew'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from report" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from report" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from report" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from load" -l rate -d 'Requests per second, whatever the service does' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from load" -l for -d 'Length of the measured part [default: 10s]' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from load" -l warmup -d 'Load before it, of which nothing counts' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from load" -l connections -d 'Connections; a request that finds none free waits, and that wait counts' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from load" -l arrival -d 'How requests are spread: poisson as from independent users, constant with equal gaps' -r -f -a "poisson\t'Exponential gaps'
constant\t'Equal gaps'"
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from load" -l seed -d 'Decides the schedule: the same seed, the same due times' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from load" -l timeout -d 'A request without an answer so long after it was due is given up, and counts with this time' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from load" -l closed -d 'Instead of a rate: N connections that send again as soon as they are answered, as most tools do. It under-states stalls' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from load" -l slo -d 'An objective, such as p99=5ms: how many windows and requests met it' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from load" -l window -d 'Length of a window of the objective, whole seconds' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from load" -l hdr -d 'Write an HdrHistogram interval log, one interval per second' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from load" -l from -d 'Let the load come from another machine, where `commensal lab load --listen` runs' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from load" -l listen -d 'Wait for the orders of `--from` and carry them out, one after the other, until Ctrl-C. Whoever reaches the port can make this machine send requests: --rate and --for bound what is accepted [default: 10000 per second, 60s]' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from load" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from load" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from load" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from load" -l find-knee -d 'Search the highest rate that the service keeps up with, instead of measuring at one: open-loop steps of 1.5 s'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from load" -l series -d 'Print one line per second as well'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from load" -l allow-remote -d 'Let --listen take an address that others can reach'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from load" -l json -d 'Print JSON'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from load" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from load" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from load" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from diff" -l baseline -d 'Compare with this baseline, as the first of the two' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from diff" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from diff" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from diff" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from diff" -l force -d 'Compare although machine or plan differ (another kernel or cgroup version is told and compared in any case)'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from diff" -l json -d 'Print JSON'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from diff" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from diff" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from diff" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from baseline" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from baseline" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from baseline" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from baseline" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from baseline" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from baseline" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from baseline" -f -a "list" -d 'List the baselines. Exit status 2 when one cannot be read'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from baseline" -f -a "show" -d 'Show the run of a baseline'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from baseline" -f -a "save" -d 'Keep a recorded run under a name, in place of what had it'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from baseline" -f -a "rm" -d 'Forget a baseline'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from baseline" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from history" -l page -d 'Also write a page with charts' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from history" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from history" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from history" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from history" -l json -d 'Print JSON'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from history" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from history" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from history" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "run" -d 'Run an experiment: verdict, table, run.json, report.html. Exit status 0 PASS, 1 FAIL or BROKEN, 3 INCONCLUSIVE, 4 INVALID'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "list" -d 'List the experiments that come with this program'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "show" -d 'Print an experiment\'s file, to be changed and run'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "check" -d 'Look whether everything that an experiment needs is there. Exit status 0 when it is, 2 when not'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "profile" -d 'Run one service against each built-in antagonist, and print what each does to it. Exit status 0, or 4 when this machine cannot tell'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "doctor" -d 'Say within about a minute whether this machine can decide an experiment\'s threshold, and how long a run would take: its two identical arms alone. Exit status 0 when it can, 4 when not'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "calibrate" -d 'Say how often the lab is right on this machine: runs with harms of known size in place of isolation, and a table of right, wrong and open answers. Exit status 0 when the goals hold, 1 when not'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "report" -d 'Show a recorded run again, with the verdict that its blocks support'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "load" -d 'Load an HTTP service on a schedule that does not wait for it, and say how long requests took since they were due. Exit status 4 when the measurement cannot be believed'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "diff" -d 'Compare two recorded runs of one machine and one plan, or one with a baseline'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "baseline" -d 'Runs that are kept under a name, to compare later ones with'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "history" -d 'Show how the answers of this machine moved from run to run'
complete -c commensal -n "__fish_commensal_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c commensal -n "__fish_commensal_using_subcommand density; and not __fish_seen_subcommand_from classify run list prepare pin report calibrate plan simulate fleet help" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand density; and not __fish_seen_subcommand_from classify run list prepare pin report calibrate plan simulate fleet help" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and not __fish_seen_subcommand_from classify run list prepare pin report calibrate plan simulate fleet help" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and not __fish_seen_subcommand_from classify run list prepare pin report calibrate plan simulate fleet help" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand density; and not __fish_seen_subcommand_from classify run list prepare pin report calibrate plan simulate fleet help" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand density; and not __fish_seen_subcommand_from classify run list prepare pin report calibrate plan simulate fleet help" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand density; and not __fish_seen_subcommand_from classify run list prepare pin report calibrate plan simulate fleet help" -f -a "classify" -d 'Say which class a placement of VMs is: ideal, shared-core or oversubscribed. On this machine, a described server, or a whole fleet. Exit status 1 when it is worse than --require'
complete -c commensal -n "__fish_commensal_using_subcommand density; and not __fish_seen_subcommand_from classify run list prepare pin report calibrate plan simulate fleet help" -f -a "run" -d 'Climb a ladder on this machine: cells that stand for VMs, more and more of them, with more and more sessions. Prints the table. Exit status 0 when every rung completed, 1 when some failed'
complete -c commensal -n "__fish_commensal_using_subcommand density; and not __fish_seen_subcommand_from classify run list prepare pin report calibrate plan simulate fleet help" -f -a "list" -d 'List the ladders that come with this program'
complete -c commensal -n "__fish_commensal_using_subcommand density; and not __fish_seen_subcommand_from classify run list prepare pin report calibrate plan simulate fleet help" -f -a "prepare" -d 'Get what TPC-DS needs: DuckDB from PyPI into the state directory, data, query texts, and which 51 queries are fastest on this machine'
complete -c commensal -n "__fish_commensal_using_subcommand density; and not __fish_seen_subcommand_from classify run list prepare pin report calibrate plan simulate fleet help" -f -a "pin" -d 'Say which CPUs VMs are to be pinned to: whole cores, in one NUMA node where they fit. With --apply, keep their cgroups to them, and vCPU threads of QEMU each to one CPU; `commensal restore` puts that back'
complete -c commensal -n "__fish_commensal_using_subcommand density; and not __fish_seen_subcommand_from classify run list prepare pin report calibrate plan simulate fleet help" -f -a "report" -d 'Show a recorded ladder: the table, work per server and per core, and what cannot be believed'
complete -c commensal -n "__fish_commensal_using_subcommand density; and not __fish_seen_subcommand_from classify run list prepare pin report calibrate plan simulate fleet help" -f -a "calibrate" -d 'Measure what a core of this machine loses when others are busy, what its threads gain together, and how many cores use up the memory\'s bandwidth'
complete -c commensal -n "__fish_commensal_using_subcommand density; and not __fish_seen_subcommand_from classify run list prepare pin report calibrate plan simulate fleet help" -f -a "plan" -d 'Say how many VMs fit on a server before work takes too long, from a recorded ladder or by measuring. Exit status 0 with an answer, 3 without'
complete -c commensal -n "__fish_commensal_using_subcommand density; and not __fish_seen_subcommand_from classify run list prepare pin report calibrate plan simulate fleet help" -f -a "simulate" -d 'Fit the simulator on a part of a recorded ladder and say how far off it is on the rest'
complete -c commensal -n "__fish_commensal_using_subcommand density; and not __fish_seen_subcommand_from classify run list prepare pin report calibrate plan simulate fleet help" -f -a "fleet" -d 'Simulate a fleet, VM by VM, and say how many fit on a server'
complete -c commensal -n "__fish_commensal_using_subcommand density; and not __fish_seen_subcommand_from classify run list prepare pin report calibrate plan simulate fleet help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from classify" -l cores -d 'Physical cores of the server [default: this machine\'s]' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from classify" -l threads -d 'Logical CPUs of the server [default: this machine\'s]' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from classify" -l reserve -d 'Cores that the host keeps for itself, or `measured`: what this machine uses now, at least one [default: 1]' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from classify" -l fleet -d 'A file that describes servers and their VMs' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from classify" -l require -d 'The worst class that is allowed: ideal, shared-core or oversubscribed' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from classify" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from classify" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from classify" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from classify" -l json -d 'Print JSON'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from classify" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from classify" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from classify" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from run" -l repeats -d 'Attempts per rung [default: the ladder\'s]' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from run" -l seed -d 'Seed of the order [default: the ladder\'s]' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from run" -l resume -d 'Go on with an interrupted run\'s record; it is then the record of the whole' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from run" -s o -l out -d 'Where to write the record; the page with the charts goes beside it, as .html' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from run" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from run" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from run" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from run" -l json -d 'Print the record instead of the table'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from run" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from run" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from run" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from list" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from list" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from list" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from list" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from list" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from prepare" -l scale -d 'Scale factor: 1 is about 1 GB of raw data' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from prepare" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from prepare" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from prepare" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from prepare" -l postgres -d 'Make a PostgreSQL cluster of the same data, too (needs PostgreSQL; Debian: apt install postgresql)'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from prepare" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from prepare" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from prepare" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from pin" -l reserve -d 'Cores that stay with the host' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from pin" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from pin" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from pin" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from pin" -l libvirt -d 'Print what libvirt\'s domain XML needs, too'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from pin" -l apply -d 'Make it so'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from pin" -l json -d 'Print JSON'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from pin" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from pin" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from pin" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from report" -l html -d 'Write a page with the charts, too' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from report" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from report" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from report" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from report" -l json -d 'Print the computed table as JSON'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from report" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from report" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from report" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from calibrate" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from calibrate" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from calibrate" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from calibrate" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from calibrate" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from calibrate" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from plan" -l from -d 'A recorded ladder, or `arenadata` for the one of Arenadata\'s article' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from plan" -l measure -d 'Measure instead, by bisection: cells, load and limits of this ladder (a name of `density list`, or a file), each number of cells beside one alone in the same repeats' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from plan" -l most -d 'Most cells that --measure tries' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from plan" -s o -l out -d 'Where --measure writes its record' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from plan" -l max-harm -d 'Most that work may take longer than in the ladder\'s first placement, per cent' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from plan" -l test -d 'Only rungs of this test' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from plan" -l at-concurrency -d 'Only rungs with so many sessions' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from plan" -l max-warnings -d 'Most warnings of a rung' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from plan" -l max-steal -d 'Most steal of an attempt, per cent' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from plan" -l fleet -d 'VMs of the whole fleet: how many servers that takes' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from plan" -l smt-gain -d 'Work of a core with all its threads busy, in cores with one, for the model\'s band (`density calibrate` measures it)' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from plan" -l all-core -d 'Speed of a core when all are busy, of its speed alone, for the model\'s band' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from plan" -l bandwidth-cores -d 'Cores whose copying uses up the memory\'s bandwidth, for the model\'s band [default: it does not bind]' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from plan" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from plan" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from plan" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from plan" -l accept-means -d 'Plan without a bound where only means are known'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from plan" -l json -d 'Print JSON'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from plan" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from plan" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from plan" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from simulate" -l fit-on -d 'The rung that tells what sharing costs, as TEST@SESSIONS [default: the first test\'s second rung]' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from simulate" -l seed -d 'Seed' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from simulate" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from simulate" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from simulate" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from simulate" -l json -d 'Print JSON'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from simulate" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from simulate" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from simulate" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from fleet" -l vms -d 'VMs in all' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from fleet" -l max-harm -d 'Most that the median cluster may lose, per cent' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from fleet" -l from -d 'The ladder that the simulator is fitted on' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from fleet" -l test -d 'Its test that says what a query is [default: the first]' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from fleet" -l cluster -d 'VMs of one cluster; 1 for VMs on their own [default: those of the ladder]' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from fleet" -l sessions -d 'Sessions of each cluster' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from fleet" -l queries -d 'Queries of each session' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from fleet" -l seed -d 'Seed' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from fleet" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from fleet" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from fleet" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from fleet" -l json -d 'Print JSON'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from fleet" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from fleet" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from fleet" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from help" -f -a "classify" -d 'Say which class a placement of VMs is: ideal, shared-core or oversubscribed. On this machine, a described server, or a whole fleet. Exit status 1 when it is worse than --require'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from help" -f -a "run" -d 'Climb a ladder on this machine: cells that stand for VMs, more and more of them, with more and more sessions. Prints the table. Exit status 0 when every rung completed, 1 when some failed'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from help" -f -a "list" -d 'List the ladders that come with this program'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from help" -f -a "prepare" -d 'Get what TPC-DS needs: DuckDB from PyPI into the state directory, data, query texts, and which 51 queries are fastest on this machine'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from help" -f -a "pin" -d 'Say which CPUs VMs are to be pinned to: whole cores, in one NUMA node where they fit. With --apply, keep their cgroups to them, and vCPU threads of QEMU each to one CPU; `commensal restore` puts that back'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from help" -f -a "report" -d 'Show a recorded ladder: the table, work per server and per core, and what cannot be believed'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from help" -f -a "calibrate" -d 'Measure what a core of this machine loses when others are busy, what its threads gain together, and how many cores use up the memory\'s bandwidth'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from help" -f -a "plan" -d 'Say how many VMs fit on a server before work takes too long, from a recorded ladder or by measuring. Exit status 0 with an answer, 3 without'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from help" -f -a "simulate" -d 'Fit the simulator on a part of a recorded ladder and say how far off it is on the rest'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from help" -f -a "fleet" -d 'Simulate a fleet, VM by VM, and say how many fit on a server'
complete -c commensal -n "__fish_commensal_using_subcommand density; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and not __fish_seen_subcommand_from load status unload watch help" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand sched; and not __fish_seen_subcommand_from load status unload watch help" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand sched; and not __fish_seen_subcommand_from load status unload watch help" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand sched; and not __fish_seen_subcommand_from load status unload watch help" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and not __fish_seen_subcommand_from load status unload watch help" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and not __fish_seen_subcommand_from load status unload watch help" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and not __fish_seen_subcommand_from load status unload watch help" -f -a "load" -d 'Load the scheduler, and put the groups under it. Exit status 0 when they are, 1 when it is loaded and not all is as it was asked for, 2 when nothing was loaded'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and not __fish_seen_subcommand_from load status unload watch help" -f -a "status" -d 'Say what the loaded scheduler does, in its own figures, and beside them what the judge sees. Exit status 0 when it runs, 1 when it is loaded and does not do its work, 2 when nothing is loaded'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and not __fish_seen_subcommand_from load status unload watch help" -f -a "unload" -d 'Give every thread its own policy back and take the scheduler off, also after its process was killed; or end the one that --with has loaded'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and not __fish_seen_subcommand_from load status unload watch help" -f -a "watch" -d 'Stay with the program of another scheduler (started by `load --with`)'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and not __fish_seen_subcommand_from load status unload watch help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from load" -s c -l config -d 'A groups file, or a folder of *.toml: as `apply`, unless an agent keeps its own' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from load" -l orders -d 'Orders in place of groups: a file with the object that goes over the scheduler\'s socket' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from load" -l hold-off-us -d 'For how long a thread of a core stays free after a thread that expels has left it, us' -r
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from load" -l guard-ms -d 'Freeze offline groups when one of their threads has waited for so long [default: 5000]' -r
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from load" -l watchdog-ms -d 'Have the kernel take the scheduler off when a thread has waited for so long (at most 30000) [default: 30000]' -r
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from load" -l with -d 'Load another sched_ext scheduler: its program and arguments, up to the end of the line' -r
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from load" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from load" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from load" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from load" -l replace -d 'Take over from the one that is loaded, with its orders'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from load" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from load" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from load" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from status" -l for -d 'How long the judge looks, such as 10s; 0s leaves it out' -r
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from status" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from status" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from status" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from status" -l json -d 'Print JSON'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from status" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from status" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from status" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from unload" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from unload" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from unload" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from unload" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from unload" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from unload" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from watch" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from watch" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from watch" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from watch" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from watch" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from watch" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from help" -f -a "load" -d 'Load the scheduler, and put the groups under it. Exit status 0 when they are, 1 when it is loaded and not all is as it was asked for, 2 when nothing was loaded'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from help" -f -a "status" -d 'Say what the loaded scheduler does, in its own figures, and beside them what the judge sees. Exit status 0 when it runs, 1 when it is loaded and does not do its work, 2 when nothing is loaded'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from help" -f -a "unload" -d 'Give every thread its own policy back and take the scheduler off, also after its process was killed; or end the one that --with has loaded'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from help" -f -a "watch" -d 'Stay with the program of another scheduler (started by `load --with`)'
complete -c commensal -n "__fish_commensal_using_subcommand sched; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and not __fish_seen_subcommand_from http responder pulse thaw-guard antagonist cell burn help" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand workload; and not __fish_seen_subcommand_from http responder pulse thaw-guard antagonist cell burn help" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and not __fish_seen_subcommand_from http responder pulse thaw-guard antagonist cell burn help" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and not __fish_seen_subcommand_from http responder pulse thaw-guard antagonist cell burn help" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and not __fish_seen_subcommand_from http responder pulse thaw-guard antagonist cell burn help" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and not __fish_seen_subcommand_from http responder pulse thaw-guard antagonist cell burn help" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and not __fish_seen_subcommand_from http responder pulse thaw-guard antagonist cell burn help" -f -a "http" -d 'The HTTP service: /cpu?cpu=N&count=M, /metrics, /healthz'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and not __fish_seen_subcommand_from http responder pulse thaw-guard antagonist cell burn help" -f -a "responder" -d 'The fastest HTTP service that one thread can be, with stalls'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and not __fish_seen_subcommand_from http responder pulse thaw-guard antagonist cell burn help" -f -a "pulse" -d 'Threads that sleep for random times and then compute'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and not __fish_seen_subcommand_from http responder pulse thaw-guard antagonist cell burn help" -f -a "thaw-guard" -d 'Waits until standard input ends, then lets go on what a killed lab run left frozen, and removes the rest of it'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and not __fish_seen_subcommand_from http responder pulse thaw-guard antagonist cell burn help" -f -a "antagonist" -d 'Threads that disturb in one way, and count their work in the file given as standard input'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and not __fish_seen_subcommand_from http responder pulse thaw-guard antagonist cell burn help" -f -a "cell" -d 'What a cell of a density ladder does'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and not __fish_seen_subcommand_from http responder pulse thaw-guard antagonist cell burn help" -f -a "burn" -d 'CPU burners that count their work in the file given as standard input'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and not __fish_seen_subcommand_from http responder pulse thaw-guard antagonist cell burn help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from http" -l port -d 'Port on 127.0.0.1; 0 is any free one' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from http" -l workers -d 'Worker threads' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from http" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from http" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from http" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from http" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from http" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from http" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from responder" -l port -d 'Port on 127.0.0.1; 0 is any free one' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from responder" -l stall-ms -d 'Length of a stall, ms' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from responder" -l stall-every-s -d 'From one stall to the next, seconds' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from responder" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from responder" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from responder" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from responder" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from responder" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from responder" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from pulse" -l threads -d 'Threads' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from pulse" -l period-us -d 'Mean sleep, us' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from pulse" -l work-us -d 'CPU time of one piece of work, us' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from pulse" -l seed -d 'Of the sleeps' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from pulse" -l seconds -d 'How long [default: until killed]' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from pulse" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from pulse" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from pulse" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from pulse" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from pulse" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from pulse" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from thaw-guard" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from thaw-guard" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from thaw-guard" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from thaw-guard" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from thaw-guard" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from thaw-guard" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from antagonist" -l threads -d 'Threads' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from antagonist" -l size -d 'Bytes of memory or file per thread [default: that of the kind]' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from antagonist" -l dir -d 'Where the files of page-cache and disk live, without a name' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from antagonist" -l seconds -d 'How long [default: until killed]' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from antagonist" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from antagonist" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from antagonist" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from antagonist" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from antagonist" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from antagonist" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from cell" -l stream -d 'Bytes of each of two arrays that are copied, in place of computing' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from cell" -l cell -d 'Which cell this is, from 0' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from cell" -l vcpu -d 'Worker threads' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from cell" -l sessions -d 'Sessions' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from cell" -l work -d 'Chunks or steps of each session' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from cell" -l timeout-ms -d 'After which an unanswered datagram is sent again, ms' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from cell" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from cell" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from cell" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from cell" -l barrier -d 'A barrier over all cells after each step'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from cell" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from cell" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from cell" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from burn" -l threads -d 'Threads' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from burn" -l state-dir -d 'Where the undo journal is kept [default: /var/lib/commensal as root, else $XDG_STATE_HOME/commensal]' -r -F
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from burn" -l cgroup-prefix -d 'First part of the names of commensal\'s own cgroups: NAME-online and NAME-offline' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from burn" -l cgroup-root -d 'Make commensal\'s own cgroups below this one [default: the root; as another user, or where systemd manages the tree, the cgroup that was delegated to this process]. `/` insists on the root although systemd manages it' -r
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from burn" -s v -l verbose -d 'Print what happens in detail (to standard error)'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from burn" -s h -l help -d 'Print help'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from burn" -s V -l version -d 'Print version'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from help" -f -a "http" -d 'The HTTP service: /cpu?cpu=N&count=M, /metrics, /healthz'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from help" -f -a "responder" -d 'The fastest HTTP service that one thread can be, with stalls'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from help" -f -a "pulse" -d 'Threads that sleep for random times and then compute'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from help" -f -a "thaw-guard" -d 'Waits until standard input ends, then lets go on what a killed lab run left frozen, and removes the rest of it'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from help" -f -a "antagonist" -d 'Threads that disturb in one way, and count their work in the file given as standard input'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from help" -f -a "cell" -d 'What a cell of a density ladder does'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from help" -f -a "burn" -d 'CPU burners that count their work in the file given as standard input'
complete -c commensal -n "__fish_commensal_using_subcommand workload; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c commensal -n "__fish_commensal_using_subcommand help; and not __fish_seen_subcommand_from doctor plan apply restore run agent guard status explain top queue blame lab density sched workload help" -f -a "doctor" -d 'Say what this machine can enforce, by trying it in a scratch cgroup; what is missing and what would help'
complete -c commensal -n "__fish_commensal_using_subcommand help; and not __fish_seen_subcommand_from doctor plan apply restore run agent guard status explain top queue blame lab density sched workload help" -f -a "plan" -d 'Show every write that `apply` would make, in order, with its reason. Changes nothing: knobs are tried in an empty scratch cgroup only'
complete -c commensal -n "__fish_commensal_using_subcommand help; and not __fish_seen_subcommand_from doctor plan apply restore run agent guard status explain top queue blame lab density sched workload help" -f -a "apply" -d 'Make it so, once; every original value is kept in the undo journal'
complete -c commensal -n "__fish_commensal_using_subcommand help; and not __fish_seen_subcommand_from doctor plan apply restore run agent guard status explain top queue blame lab density sched workload help" -f -a "restore" -d 'Put back every original value and remove commensal\'s own cgroups. Works with everything else dead'
complete -c commensal -n "__fish_commensal_using_subcommand help; and not __fish_seen_subcommand_from doctor plan apply restore run agent guard status explain top queue blame lab density sched workload help" -f -a "run" -d 'Start a command inside a group; signals and the exit status pass through'
complete -c commensal -n "__fish_commensal_using_subcommand help; and not __fish_seen_subcommand_from doctor plan apply restore run agent guard status explain top queue blame lab density sched workload help" -f -a "agent" -d 'Keep the groups in force: follow members, put back what others change, guard the machine if the agent dies. SIGHUP reads the groups again, SIGTERM ends it'
complete -c commensal -n "__fish_commensal_using_subcommand help; and not __fish_seen_subcommand_from doctor plan apply restore run agent guard status explain top queue blame lab density sched workload help" -f -a "guard" -d 'Bring the machine into its safe state when the agent is gone or hangs (started by the agent, or as a unit of its own)'
complete -c commensal -n "__fish_commensal_using_subcommand help; and not __fish_seen_subcommand_from doctor plan apply restore run agent guard status explain top queue blame lab density sched workload help" -f -a "status" -d 'Say what is in force: groups, limits, queues, and what is wrong. Exit status 1 when not all that was asked for is, 2 without an agent'
complete -c commensal -n "__fish_commensal_using_subcommand help; and not __fish_seen_subcommand_from doctor plan apply restore run agent guard status explain top queue blame lab density sched workload help" -f -a "explain" -d 'Say why each limit of a group is what it is: the rule that won, and the formula with its inputs'
complete -c commensal -n "__fish_commensal_using_subcommand help; and not __fish_seen_subcommand_from doctor plan apply restore run agent guard status explain top queue blame lab density sched workload help" -f -a "top" -d 'Watch the groups live; ? tells the keys'
complete -c commensal -n "__fish_commensal_using_subcommand help; and not __fish_seen_subcommand_from doctor plan apply restore run agent guard status explain top queue blame lab density sched workload help" -f -a "queue" -d 'Show who runs and who waits in the admission queues, and whether one is held closed. Changes nothing'
complete -c commensal -n "__fish_commensal_using_subcommand help; and not __fish_seen_subcommand_from doctor plan apply restore run agent guard status explain top queue blame lab density sched workload help" -f -a "blame" -d 'Say who held the CPU while a service waited for it: exactly, from inside the kernel, and without a change to the machine. Needs root (or CAP_BPF and CAP_PERFMON)'
complete -c commensal -n "__fish_commensal_using_subcommand help; and not __fish_seen_subcommand_from doctor plan apply restore run agent guard status explain top queue blame lab density sched workload help" -f -a "lab" -d 'Measure what co-location costs'
complete -c commensal -n "__fish_commensal_using_subcommand help; and not __fish_seen_subcommand_from doctor plan apply restore run agent guard status explain top queue blame lab density sched workload help" -f -a "density" -d 'Say how many VMs or databases fit on a server, and what it costs'
complete -c commensal -n "__fish_commensal_using_subcommand help; and not __fish_seen_subcommand_from doctor plan apply restore run agent guard status explain top queue blame lab density sched workload help" -f -a "sched" -d 'Load, watch and unload the scheduler that keeps offline work off the CPU while the machine runs'
complete -c commensal -n "__fish_commensal_using_subcommand help; and not __fish_seen_subcommand_from doctor plan apply restore run agent guard status explain top queue blame lab density sched workload help" -f -a "workload" -d 'The lab\'s built-in workloads (started by the lab itself)'
complete -c commensal -n "__fish_commensal_using_subcommand help; and not __fish_seen_subcommand_from doctor plan apply restore run agent guard status explain top queue blame lab density sched workload help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from agent" -f -a "reload" -d 'Read the groups again now, and take them into force. Exit status 2 with the mistakes when the old ones stay'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from agent" -f -a "pause" -d 'Write nothing until `resume`: limits stay as they are, and the agent goes on looking'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from agent" -f -a "resume" -d 'Write again'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from agent" -f -a "canary" -d 'Prove what isolation does on this machine now: take it from the offline groups for short windows in random order, and compare what online groups wait. It ends as soon as the effect is shown. Exit status 0: online groups wait longer without isolation; 1: they wait longer with it; 3: neither is shown'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "run" -d 'Run an experiment: verdict, table, run.json, report.html. Exit status 0 PASS, 1 FAIL or BROKEN, 3 INCONCLUSIVE, 4 INVALID'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "list" -d 'List the experiments that come with this program'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "show" -d 'Print an experiment\'s file, to be changed and run'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "check" -d 'Look whether everything that an experiment needs is there. Exit status 0 when it is, 2 when not'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "profile" -d 'Run one service against each built-in antagonist, and print what each does to it. Exit status 0, or 4 when this machine cannot tell'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "doctor" -d 'Say within about a minute whether this machine can decide an experiment\'s threshold, and how long a run would take: its two identical arms alone. Exit status 0 when it can, 4 when not'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "calibrate" -d 'Say how often the lab is right on this machine: runs with harms of known size in place of isolation, and a table of right, wrong and open answers. Exit status 0 when the goals hold, 1 when not'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "report" -d 'Show a recorded run again, with the verdict that its blocks support'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "load" -d 'Load an HTTP service on a schedule that does not wait for it, and say how long requests took since they were due. Exit status 4 when the measurement cannot be believed'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "diff" -d 'Compare two recorded runs of one machine and one plan, or one with a baseline'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "baseline" -d 'Runs that are kept under a name, to compare later ones with'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "history" -d 'Show how the answers of this machine moved from run to run'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from density" -f -a "classify" -d 'Say which class a placement of VMs is: ideal, shared-core or oversubscribed. On this machine, a described server, or a whole fleet. Exit status 1 when it is worse than --require'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from density" -f -a "run" -d 'Climb a ladder on this machine: cells that stand for VMs, more and more of them, with more and more sessions. Prints the table. Exit status 0 when every rung completed, 1 when some failed'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from density" -f -a "list" -d 'List the ladders that come with this program'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from density" -f -a "prepare" -d 'Get what TPC-DS needs: DuckDB from PyPI into the state directory, data, query texts, and which 51 queries are fastest on this machine'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from density" -f -a "pin" -d 'Say which CPUs VMs are to be pinned to: whole cores, in one NUMA node where they fit. With --apply, keep their cgroups to them, and vCPU threads of QEMU each to one CPU; `commensal restore` puts that back'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from density" -f -a "report" -d 'Show a recorded ladder: the table, work per server and per core, and what cannot be believed'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from density" -f -a "calibrate" -d 'Measure what a core of this machine loses when others are busy, what its threads gain together, and how many cores use up the memory\'s bandwidth'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from density" -f -a "plan" -d 'Say how many VMs fit on a server before work takes too long, from a recorded ladder or by measuring. Exit status 0 with an answer, 3 without'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from density" -f -a "simulate" -d 'Fit the simulator on a part of a recorded ladder and say how far off it is on the rest'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from density" -f -a "fleet" -d 'Simulate a fleet, VM by VM, and say how many fit on a server'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from sched" -f -a "load" -d 'Load the scheduler, and put the groups under it. Exit status 0 when they are, 1 when it is loaded and not all is as it was asked for, 2 when nothing was loaded'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from sched" -f -a "status" -d 'Say what the loaded scheduler does, in its own figures, and beside them what the judge sees. Exit status 0 when it runs, 1 when it is loaded and does not do its work, 2 when nothing is loaded'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from sched" -f -a "unload" -d 'Give every thread its own policy back and take the scheduler off, also after its process was killed; or end the one that --with has loaded'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from sched" -f -a "watch" -d 'Stay with the program of another scheduler (started by `load --with`)'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from workload" -f -a "http" -d 'The HTTP service: /cpu?cpu=N&count=M, /metrics, /healthz'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from workload" -f -a "responder" -d 'The fastest HTTP service that one thread can be, with stalls'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from workload" -f -a "pulse" -d 'Threads that sleep for random times and then compute'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from workload" -f -a "thaw-guard" -d 'Waits until standard input ends, then lets go on what a killed lab run left frozen, and removes the rest of it'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from workload" -f -a "antagonist" -d 'Threads that disturb in one way, and count their work in the file given as standard input'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from workload" -f -a "cell" -d 'What a cell of a density ladder does'
complete -c commensal -n "__fish_commensal_using_subcommand help; and __fish_seen_subcommand_from workload" -f -a "burn" -d 'CPU burners that count their work in the file given as standard input'
