----------------------------- MODULE ObjectLog -----------------------------
(***************************************************************************)
(* The object log of one container: claims, pipelined puts, the look       *)
(* before an acknowledgement, recovery and truncation. What the actions    *)
(* stand for in design and code: docs/specification.md.                    *)
(*                                                                         *)
(* An owner is one opening of the log; a process that opens it again is    *)
(* another owner. A crash needs no action: an owner that takes no more     *)
(* steps has crashed, one that takes some later was a zombie meanwhile.    *)
(* Its requests may take effect at any time, also then, and repeatedly:    *)
(* that covers replies that are lost, retries and puts that arrive late.   *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Owners,     \* 1..n, in the order in which they begin
    MaxEpoch,
    MaxFrame,   \* greatest sequence number; the first is 1
    MaxLosses,  \* acknowledged objects that the store may lose
    MaxSkip,    \* epochs that an owner may pass over
    Truncating, \* the owners that move frames to Tier 2 and truncate
    Fault       \* "none", or the name of a planted fault

Faults == {"none", "acknowledge_without_look", "look_before_stored", "epoch_reused", "claim_skipped", "read_before_claim",
           "opened_without_look", "predecessors_skipped", "late_frames_counted", "missing_taken_for_gap", "truncated_untiered",
           "deleted_without_look", "old_list_believed"}

ASSUME Fault \in Faults

Epochs == 1..MaxEpoch
Frames == 1..MaxFrame
NoOwner == 0

VARIABLES
    \* The object store. A value names the owner whose object is there; what it holds never changes.
    claims,     \* claims[e]: holder of claims/<e>
    starts,     \* starts[e]: <e>/start
    data,       \* data[e][s]: <e>/<s>
    marks,      \* marks[e]: log start in the newest mark of epoch e, 0: none
    lost,       \* frames that the store lost by itself
    \* Each owner.
    phase,      \* "idle", "claiming", "claimed", "marks", "frames", "starting", "open", "refused"
    epoch,
    claiming,   \* number of its next claim
    shown,      \* shown[e]: the last frame of epoch e in its list; MaxFrame without one, because then it looks at all
    found,      \* what recovery found: [top, writer, history, start, seen]
    sent,       \* headers of its frames, in order: [acknowledged, start]
    looked,     \* what its last look covers
    acknowledged,
    start,      \* its log start
    marked,     \* log start up to which it may delete
    \* The container above.
    tiered      \* frames up to here are in Tier 2 and their references committed

store == <<claims, starts, data, marks, lost>>
owners == <<phase, epoch, claiming, shown, found, sent, looked, acknowledged, start, marked>>
vars == <<store, owners, tiered>>

----------------------------------------------------------------------------
Max(a, b) == IF a > b THEN a ELSE b
Greatest(numbers) == CHOOSE n \in numbers : \A m \in numbers : m <= n
IsPrefix(a, b) == Len(a) <= Len(b) /\ \A i \in 1..Len(a) : a[i] = b[i]
Extended(history, owner, length) == [i \in 1..Max(Len(history), length) |-> IF i <= Len(history) THEN history[i] ELSE owner]

LastClaim == Greatest({0} \cup {e \in Epochs : claims[e] # NoOwner})
Unclaimed(e) == IF e > MaxEpoch THEN TRUE ELSE claims[e] = NoOwner

\* history[s] is the owner who wrote frame s (also of truncated frames; a START frame lists the others as ranges).
History(o) == found[o].history
First(o) == Len(History(o)) + 1
Last(o) == Len(History(o)) + Len(sent[o])
Own(o) == First(o)..Last(o)
Header(o, s) == sent[o][s - Len(History(o))]
Acknowledged(o) == {s \in Own(o) : s <= acknowledged[o]}
IsOpen(o) == phase[o] = "open"
IsThere(o, s) == data[epoch[o]][s] = o
StoredThrough(o) ==
    Greatest({acknowledged[o]} \cup {n \in Own(o) : \A s \in First(o)..n : s > acknowledged[o] => IsThere(o, s)})

NoList == [e \in Epochs |-> MaxFrame]
Unread == [top |-> 0, writer |-> NoOwner, history |-> <<>>, start |-> 0, seen |-> 0]

----------------------------------------------------------------------------
Init ==
    /\ claims = [e \in Epochs |-> NoOwner]
    /\ starts = [e \in Epochs |-> NoOwner]
    /\ data = [e \in Epochs |-> [s \in Frames |-> NoOwner]]
    /\ marks = [e \in Epochs |-> 0]
    /\ lost = {}
    /\ phase = [o \in Owners |-> "idle"]
    /\ epoch = [o \in Owners |-> 0]
    /\ claiming = [o \in Owners |-> 0]
    /\ shown = [o \in Owners |-> NoList]
    /\ found = [o \in Owners |-> Unread]
    /\ sent = [o \in Owners |-> <<>>]
    /\ looked = [o \in Owners |-> 0]
    /\ acknowledged = [o \in Owners |-> 0]
    /\ start = [o \in Owners |-> 0]
    /\ marked = [o \in Owners |-> 0]
    /\ tiered = 0

----------------------------------------------------------------------------
(* Claims *)

Begin(o) ==
    /\ phase[o] = "idle"
    /\ \A earlier \in Owners : earlier < o => phase[earlier] # "idle"
    /\ \E e \in Epochs :
        /\ e > LastClaim \/ (Fault = "epoch_reused" /\ e = LastClaim)
        /\ e <= LastClaim + 1 + MaxSkip
        /\ epoch' = [epoch EXCEPT ![o] = e]
        /\ claiming' = [claiming EXCEPT ![o] = IF Fault = "claim_skipped" THEN e ELSE IF e > LastClaim THEN LastClaim + 1 ELSE e]
    /\ phase' = [phase EXCEPT ![o] = IF Fault = "read_before_claim" THEN "claimed" ELSE "claiming"]
    /\ UNCHANGED <<store, shown, found, sent, looked, acknowledged, start, marked, tiered>>

\* Put-if-absent of the next claim. A claim below the own epoch may belong to any owner; an owner that is denied its own gives up.
Claim(o) ==
    LET n == claiming[o]
        holder == IF claims[n] = NoOwner THEN o ELSE claims[n]
    IN
    /\ phase[o] = "claiming"
    /\ n < epoch[o] \/ holder = o \/ Fault = "epoch_reused"
    /\ claims' = [claims EXCEPT ![n] = holder]
    /\ IF n < epoch[o]
       THEN claiming' = [claiming EXCEPT ![o] = n + 1] /\ UNCHANGED phase
       ELSE /\ claiming' = [claiming EXCEPT ![o] = 0]
            /\ phase' = [phase EXCEPT ![o] = IF Fault = "read_before_claim" THEN "starting" ELSE "claimed"]
    /\ UNCHANGED <<starts, data, marks, lost, epoch, shown, found, sent, looked, acknowledged, start, marked, tiered>>

----------------------------------------------------------------------------
(* Recovery. It reads object by object; owners before and after it may write and delete meanwhile. *)

AfterReading == IF Fault = "read_before_claim" THEN "claiming" ELSE "starting"

\* How far frames of the owner w of an epoch are there without a gap behind frame n.
PrefixEnd(e, w, n) == Greatest({n} \cup {m \in Frames : m > n /\ \A s \in (n + 1)..m : data[e][s] = w})

\* What the START frame in an epoch says: the frames of earlier epochs that count, and the log start.
OfStart(top) ==
    LET w == starts[top]
        before == found[w].top
        counted == IF Fault = "late_frames_counted" /\ before # 0
                   THEN Extended(History(w), found[w].writer, PrefixEnd(before, found[w].writer, Len(History(w))))
                   ELSE History(w)
    IN  [top |-> top, writer |-> w, history |-> counted, start |-> found[w].start, seen |-> Len(counted)]

NewestStart(below) == Greatest({0} \cup {e \in Epochs : e < below /\ starts[e] # NoOwner})

\* A greater log start was seen: what lies below it is truncated and not looked for.
Raised(f, logStart) ==
    [f EXCEPT !.start = Max(@, logStart), !.history = Extended(@, f.writer, logStart)]

\* The header of a frame of the epoch that is read.
Noted(f, s) ==
    LET header == Header(f.writer, s)
    IN  [Raised(f, header.start) EXCEPT !.seen = Max(@, header.acknowledged)]

RECURSIVE NotedAll(_, _)
NotedAll(f, s) ==
    IF s > MaxFrame THEN f ELSE NotedAll(IF data[f.top][s] = f.writer THEN Noted(f, s) ELSE f, s + 1)

\* The next frame of the epoch that is read is there.
NextIsThere(f) == LET s == Len(f.history) + 1 IN IF s > MaxFrame THEN FALSE ELSE data[f.top][s] = f.writer
WithNext(f) == LET s == Len(f.history) + 1 IN [Noted(f, s) EXCEPT !.history = Extended(@, f.writer, s)]

\* Frames of epochs before the one that is read: all that its START frame lists must be there.
OlderAreThere(f) ==
    \A s \in 1..Len(History(f.writer)) :
        LET w == f.history[s] IN s > f.start => data[epoch[w]][s] = w

\* Missing at or below the greatest acknowledged_through = a loss; above it = a gap, and the rest is dropped.
NoLoss(f) == (Len(f.history) >= f.seen /\ OlderAreThere(f)) \/ Fault = "missing_taken_for_gap"

\* A list of the log, which is current: begun after the claim, it shows what is there. Without one, or with an old one, an
\* owner looks at all frames behind a gap.
List(o) ==
    /\ phase[o] = IF Fault = "old_list_believed" THEN "claiming" ELSE "claimed"
    /\ shown[o] = NoList
    /\ shown' = [shown EXCEPT ![o] = [e \in Epochs |-> Greatest({0} \cup {s \in Frames : data[e][s] # NoOwner})]]
    /\ UNCHANGED <<store, phase, epoch, claiming, found, sent, looked, acknowledged, start, marked, tiered>>

\* Only what it shows of the epoch that is read matters from now on.
ReadStart(o) ==
    LET top == NewestStart(epoch[o])
    IN
    /\ phase[o] = "claimed"
    /\ found' = [found EXCEPT ![o] = IF top = 0 THEN Unread ELSE OfStart(top)]
    /\ phase' = [phase EXCEPT ![o] =
        IF top = 0 THEN AfterReading ELSE IF Fault = "predecessors_skipped" THEN "starting" ELSE "marks"]
    /\ shown' = [shown EXCEPT ![o] = [e \in Epochs |-> IF e = top THEN @[e] ELSE MaxFrame]]
    /\ UNCHANGED <<store, epoch, claiming, sent, looked, acknowledged, start, marked, tiered>>

ReadMark(o) ==
    /\ phase[o] = "marks"
    /\ found' = [found EXCEPT ![o] = Raised(@, marks[found[o].top])]
    /\ phase' = [phase EXCEPT ![o] = "frames"]
    /\ UNCHANGED <<store, epoch, claiming, shown, sent, looked, acknowledged, start, marked, tiered>>

ReadFrame(o) ==
    /\ phase[o] = "frames"
    /\ NextIsThere(found[o])
    /\ found' = [found EXCEPT ![o] = WithNext(@)]
    /\ UNCHANGED <<store, phase, epoch, claiming, shown, sent, looked, acknowledged, start, marked, tiered>>

\* The next frame is not there. Headers behind it tell what was acknowledged; they may also raise the log start. Where a
\* list shows neither that frame nor one behind it, there are none that matter.
Decide(o) ==
    LET f == found[o]
        g == IF shown[o][f.top] <= Len(f.history) /\ Len(f.history) < MaxFrame THEN f ELSE NotedAll(f, Len(f.history) + 1)
    IN
    /\ phase[o] = "frames"
    /\ ~NextIsThere(f)
    /\ IF Len(g.history) > Len(f.history) THEN found' = [found EXCEPT ![o] = g] /\ UNCHANGED phase
       ELSE IF NoLoss(g) THEN found' = [found EXCEPT ![o] = g] /\ phase' = [phase EXCEPT ![o] = AfterReading]
       ELSE /\ Unclaimed(epoch[o] + 1)  \* else it is fenced, and what it misses is no loss
            /\ phase' = [phase EXCEPT ![o] = "refused"]
            /\ UNCHANGED found
    /\ shown' = IF phase'[o] = "frames" THEN shown ELSE [shown EXCEPT ![o] = NoList]
    /\ UNCHANGED <<store, epoch, claiming, sent, looked, acknowledged, start, marked, tiered>>

\* The START frame is stored, now or late.
StoreStart(o) ==
    /\ phase[o] \in {"starting", "open"}
    /\ starts[epoch[o]] # o
    /\ starts' = [starts EXCEPT ![epoch[o]] = o]
    /\ UNCHANGED <<claims, data, marks, lost, owners, tiered>>

\* A look after the START frame was stored found no later claim: the log is open.
Open(o) ==
    /\ phase[o] = "starting"
    /\ starts[epoch[o]] = o
    /\ Unclaimed(epoch[o] + 1) \/ Fault = "opened_without_look"
    /\ phase' = [phase EXCEPT ![o] = "open"]
    /\ looked' = [looked EXCEPT ![o] = Len(History(o))]
    /\ acknowledged' = [acknowledged EXCEPT ![o] = Len(History(o))]
    /\ start' = [start EXCEPT ![o] = found[o].start]
    /\ marked' = [marked EXCEPT ![o] = found[o].start]
    /\ UNCHANGED <<store, epoch, claiming, shown, found, sent, tiered>>

----------------------------------------------------------------------------
(* Writing *)

\* A put is on its way; others may be, too.
Send(o) ==
    /\ IsOpen(o)
    /\ Last(o) < MaxFrame
    /\ sent' = [sent EXCEPT ![o] = Append(@, [acknowledged |-> acknowledged[o], start |-> start[o]])]
    /\ UNCHANGED <<store, phase, epoch, claiming, shown, found, looked, acknowledged, start, marked, tiered>>

\* A put takes effect: at once, late, or again, whether its owner learns of it, waits, or is dead.
StoreFrame(o, s) ==
    /\ s \in Own(o)
    /\ ~IsThere(o, s)
    /\ <<o, s>> \notin lost
    /\ data' = [data EXCEPT ![epoch[o]][s] = o]
    /\ UNCHANGED <<claims, starts, marks, lost, owners, tiered>>

\* A look at the next claim finds nothing. It covers the frames that were known to be stored without a gap before.
Look(o) ==
    LET through == IF Fault = "look_before_stored" THEN Last(o) ELSE StoredThrough(o) IN
    /\ IsOpen(o)
    /\ Unclaimed(epoch[o] + 1)
    /\ looked[o] < through
    /\ looked' = [looked EXCEPT ![o] = through]
    /\ UNCHANGED <<store, phase, epoch, claiming, shown, found, sent, acknowledged, start, marked, tiered>>

\* Some time later the owner acts on it.
Acknowledge(o) ==
    LET through == IF Fault = "acknowledge_without_look" THEN StoredThrough(o)
                   ELSE IF Fault = "look_before_stored" /\ StoredThrough(o) < looked[o] THEN StoredThrough(o)
                   ELSE looked[o] IN
    /\ IsOpen(o)
    /\ acknowledged[o] < through
    /\ acknowledged' = [acknowledged EXCEPT ![o] = through]
    /\ UNCHANGED <<store, phase, epoch, claiming, shown, found, sent, looked, start, marked, tiered>>

----------------------------------------------------------------------------
(* Truncation *)

\* The reference to a frame's bytes in Tier 2 is committed: by an acknowledged frame, so under the same rule.
Tier(o) ==
    /\ o \in Truncating
    /\ IsOpen(o)
    /\ Unclaimed(epoch[o] + 1)
    /\ tiered < acknowledged[o]
    /\ tiered' = acknowledged[o]
    /\ UNCHANGED <<store, owners>>

Truncate(o) ==
    /\ o \in Truncating
    /\ IsOpen(o)
    /\ \E s \in Frames :
        /\ start[o] < s /\ s <= acknowledged[o]
        /\ s <= tiered \/ Fault = "truncated_untiered"
        /\ start' = [start EXCEPT ![o] = s]
    /\ UNCHANGED <<store, phase, epoch, claiming, shown, found, sent, looked, acknowledged, marked, tiered>>

\* A MARK is stored, now or late.
StoreMark(o) ==
    /\ IsOpen(o)
    /\ marks[epoch[o]] < start[o]
    /\ marks' = [marks EXCEPT ![epoch[o]] = start[o]]
    /\ UNCHANGED <<claims, starts, data, lost, owners, tiered>>

\* A look after the mark was stored finds no later claim: what lies below may be deleted, now or late.
LookAfterMark(o) ==
    /\ IsOpen(o)
    /\ marked[o] < start[o] /\ marks[epoch[o]] >= start[o]
    /\ Unclaimed(epoch[o] + 1) \/ Fault = "deleted_without_look"
    /\ marked' = [marked EXCEPT ![o] = start[o]]
    /\ UNCHANGED <<store, phase, epoch, claiming, shown, found, sent, looked, acknowledged, start, tiered>>

\* Truncated frames go, and what the START frame does not list of earlier epochs; one by one, in any order.
Delete(o, e, s) ==
    LET listed == s <= Len(History(o)) /\ epoch[History(o)[s]] = e IN
    /\ IsOpen(o)
    /\ data[e][s] # NoOwner
    /\ \/ e <= epoch[o] /\ s <= marked[o]
       \/ e < epoch[o] /\ ~listed
    /\ data' = [data EXCEPT ![e][s] = NoOwner]
    /\ UNCHANGED <<claims, starts, marks, lost, owners, tiered>>

\* START frames and marks of earlier epochs go, too.
DeleteStart(o, e) ==
    /\ IsOpen(o)
    /\ e < epoch[o] /\ starts[e] # NoOwner
    /\ starts' = [starts EXCEPT ![e] = NoOwner]
    /\ UNCHANGED <<claims, data, marks, lost, owners, tiered>>

----------------------------------------------------------------------------
(* The store loses an acknowledged object by itself, while another object reports that it was acknowledged. *)

IsReported(o, s) ==
    \/ \E later \in Own(o) : later > s /\ IsThere(o, later) /\ Header(o, later).acknowledged >= s
    \/ \E p \in Owners : IsOpen(p) /\ epoch[p] > epoch[o] /\ starts[epoch[p]] = p /\ Len(History(p)) >= s

Lose(o, s) ==
    /\ Cardinality(lost) < MaxLosses
    /\ s \in Acknowledged(o) /\ IsThere(o, s) /\ IsReported(o, s)
    /\ data' = [data EXCEPT ![epoch[o]][s] = NoOwner]
    /\ lost' = lost \cup {<<o, s>>}
    /\ UNCHANGED <<claims, starts, marks, owners, tiered>>

----------------------------------------------------------------------------
Next ==
    \/ \E o \in Owners :
        \/ Begin(o) \/ Claim(o)
        \/ List(o) \/ ReadStart(o) \/ ReadMark(o) \/ ReadFrame(o) \/ Decide(o) \/ StoreStart(o) \/ Open(o)
        \/ Send(o) \/ Look(o) \/ Acknowledge(o)
        \/ Tier(o) \/ Truncate(o) \/ StoreMark(o) \/ LookAfterMark(o)
        \/ \E s \in Frames : StoreFrame(o, s) \/ Lose(o, s)
        \/ \E e \in Epochs : DeleteStart(o, e) \/ \E s \in Frames : Delete(o, e, s)

Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------
TypeOK ==
    /\ claims \in [Epochs -> Owners \cup {NoOwner}]
    /\ starts \in [Epochs -> Owners \cup {NoOwner}]
    /\ data \in [Epochs -> [Frames -> Owners \cup {NoOwner}]]
    /\ marks \in [Epochs -> 0..MaxFrame]
    /\ lost \subseteq Owners \X Frames
    /\ \A o \in Owners :
        /\ phase[o] \in {"idle", "claiming", "claimed", "marks", "frames", "starting", "open", "refused"}
        /\ epoch[o] \in 0..MaxEpoch
        /\ shown[o] \in [Epochs -> 0..MaxFrame]
        /\ History(o) \in Seq(Owners) /\ Last(o) <= MaxFrame
        /\ start[o] <= acknowledged[o] /\ acknowledged[o] <= Last(o) /\ marked[o] <= start[o]
    /\ tiered \in 0..MaxFrame

\* A frame is acknowledged by one owner, and only by one.
NoSplitBrain == \A o, p \in Owners : o # p => Acknowledged(o) \cap Acknowledged(p) = {}

\* A later owner finds every frame that an earlier owner acknowledged or will acknowledge.
NoAcknowledgedFrameLost ==
    \A o, p \in Owners : IsOpen(p) /\ epoch[o] < epoch[p] =>
        \A s \in Acknowledged(o) : s <= found[p].start \/ (s <= Len(History(p)) /\ History(p)[s] = o)

\* A frame that is acknowledged and not in Tier 2 stays in the store.
NothingUntieredDeleted ==
    \A o \in Owners : \A s \in Acknowledged(o) : s > tiered => IsThere(o, s) \/ <<o, s>> \in lost

\* What counts stays what it is, and only grows, from one open owner to the next.
PrefixesGrow ==
    \A o, p \in Owners : IsOpen(o) /\ IsOpen(p) /\ epoch[o] < epoch[p] =>
        IsPrefix(History(o), History(p)) /\ found[o].start <= found[p].start

\* A recovery that reads everything at this moment, for an owner of an epoch.
RECURSIVE ReadFrom(_)
ReadFrom(f) ==
    LET g == NotedAll(f, Len(f.history) + 1)
    IN  IF NextIsThere(f) THEN ReadFrom(WithNext(f))
        ELSE IF Len(g.history) > Len(f.history) THEN ReadFrom(g)
        ELSE g
Recovery(e) ==
    LET top == NewestStart(e) IN IF top = 0 THEN Unread ELSE ReadFrom(Raised(OfStart(top), marks[top]))

\* Recovering again, whatever an owner and those before it did meanwhile, finds what it had found and its own prefix.
RecoveryIdempotent ==
    \A o \in Owners : IsOpen(o) /\ NewestStart(MaxEpoch + 1) = epoch[o] =>
        LET f == Recovery(epoch[o] + 1) IN
        /\ lost = {} => NoLoss(f)
        /\ IsPrefix(History(o), f.history) /\ \A s \in First(o)..Len(f.history) : f.history[s] = o
        /\ lost = {} => Len(f.history) >= acknowledged[o]
        /\ (\A s \in Own(o) : ~IsThere(o, s)) /\ marks[epoch[o]] <= Len(History(o)) => f.history = History(o)

\* Only a loss is refused.
NoFalseAlarm == lost = {} => \A o \in Owners : phase[o] # "refused"
=============================================================================
