# Prints a manifest without the objects that make undeploy keeps:
#  1. the definitions, and with them all objects of their kinds;
#  2. the policies that check these objects: the requester of a Turn counts only if its policy was never deleted;
#  3. the claim with the journal, from which Turns continue after the manager is installed again;
#  4. the Namespace, because its deletion would delete the claim.
BEGIN { RS = "---\n"; ORS = "---\n" }
!/(^|\n)kind: (CustomResourceDefinition|ValidatingAdmissionPolicy(Binding)?|PersistentVolumeClaim|Namespace)\n/
